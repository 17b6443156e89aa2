"""Users for tests of the core and of the store."""

from __future__ import annotations

from typing import Any

import msgspec

from escrowmq.model.users import SealedSecret, User, UserKind
from escrowmq.transaction.user_commands import NEW, PutUser

SEALED = SealedSecret("0123456789abcdef", bytes(range(12)), bytes(range(48)))


def user(name: str = "shop", **changes: Any) -> User:  # noqa: ANN401 - fields of ``User``
    """A normal user without policies."""
    made = User(
        name=name, kind=UserKind.NORMAL, is_enabled=True, access_key=name, secrets=(SEALED,)
    )
    return msgspec.structs.replace(made, **changes)


def put(one: User, seen: int = NEW) -> PutUser:
    """Create a user, or change the one that was seen."""
    return PutUser(user=one, seen=seen, by="admin")
