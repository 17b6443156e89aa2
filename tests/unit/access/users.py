"""Users and policies for tests of access control."""

from __future__ import annotations

from typing import Any

import msgspec

from escrowmq.access.needs import Need
from escrowmq.access.parsing import parse_need, parse_policy
from escrowmq.model.users import Policy, SealedSecret, User, UserKind

SEALED = SealedSecret("0123456789abcdef", bytes(12), bytes(48))


def user(*policies: Policy, **changes: Any) -> User:  # noqa: ANN401 - fields of ``User``
    """A normal user with these policies."""
    made = User(
        name="shop",
        kind=UserKind.NORMAL,
        is_enabled=True,
        access_key="shop",
        secrets=(SEALED,),
        policies=policies,
    )
    return msgspec.structs.replace(made, **changes)


def allow(resource: str, actions: str = "All", sources: str = "") -> Policy:
    return parse_policy(resource, actions, sources)


def deny(resource: str, actions: str = "All", sources: str = "") -> Policy:
    return parse_policy(resource, actions, sources, "deny")


def need(action: str, resource: str) -> Need:
    return parse_need(action, resource)
