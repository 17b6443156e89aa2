"""Makes the user that a request describes: from texts, and from the user as it is."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from escrowmq.access.parsing import parse_kind, parse_policy, parse_roles
from escrowmq.broker.access.secret_box import checked_secret, made_secret
from escrowmq.model.errors import RequestRefused, StoreUnusable
from escrowmq.model.users import User
from escrowmq.transaction.user_commands import NEW, PutUser

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from escrowmq.broker.access.secret_box import SecretBox, SecretKeeper
    from escrowmq.model.secret import Secret
    from escrowmq.model.users import SealedSecret
    from escrowmq.protocol.native.user_headers import PolicyRow, UserPutHeader
    from escrowmq.transaction.memory.catalog import KeptUser


class SecretChange(StrEnum):
    """What a change of a user does to its secrets."""

    KEEP = "keep"
    #: A new secret; the newest of the others stays valid beside it.
    ROTATE = "rotate"
    #: Only the newest secret stays valid.
    RETIRE = "retire"


def changed_user(
    users: Mapping[str, KeptUser],
    change: UserPutHeader,
    policies: Iterable[PolicyRow],
    keeper: SecretKeeper,
) -> tuple[PutUser, Secret | None]:
    """Return the command for this change, and the new secret if there is one."""
    known = users.get(change.user)
    if known is None and change.seen != NEW:
        raise RequestRefused(
            "user_unknown", "`escrowmq user list` shows all users", user=change.user
        )
    before = () if known is None or change.seen == NEW else known.user.secrets
    secrets, secret = _secrets(users, change, before, keeper)
    user = User(
        name=change.user,
        kind=parse_kind(change.kind),
        is_enabled=change.is_enabled,
        access_key=change.access_key or change.user,
        secrets=secrets,
        policies=tuple(
            parse_policy(one.resource, one.actions, one.sources, one.effect) for one in policies
        ),
        roles=parse_roles(change.roles),
        certificate_names=tuple(filter(None, change.certificate_names.split("\n"))),
    )
    return PutUser(user=user, seen=change.seen, by=change.by), secret


def _secrets(
    users: Mapping[str, KeptUser],
    change: UserPutHeader,
    before: tuple[SealedSecret, ...],
    keeper: SecretKeeper,
) -> tuple[tuple[SealedSecret, ...], Secret | None]:
    asked = _asked(change.secrets_after)
    if before and asked is SecretChange.KEEP:
        return before, None
    if before and asked is SecretChange.RETIRE:
        return before[:1], None
    box = keeper.box
    if not before:
        refuse_other_key(users, box)
    secret = checked_secret(change.secret) if change.secret else made_secret()
    # A secret under another key cannot be opened: it would only look valid.
    readable = tuple(one for one in before if one.key_id == box.key_id)
    return (box.seal(secret, change.user), *readable[:1]), secret


def _asked(text: str) -> SecretChange:
    try:
        return SecretChange(text)
    except ValueError:
        raise RequestRefused(
            "secrets_after_unknown", f"name one of {', '.join(SecretChange)}", value=text
        ) from None


def refuse_other_key(users: Mapping[str, KeptUser], box: SecretBox) -> None:
    """Refuse a key under which no secret is sealed, if there are secrets."""
    sealed = {secret.key_id for kept in users.values() for secret in kept.user.secrets}
    if sealed and box.key_id not in sealed:
        raise StoreUnusable(
            "access_key_wrong",
            "another key sealed the secrets of the other users: give that one, or rotate their"
            " secrets first",
            sealed_under=sorted(sealed),
            key_given=box.key_id,
        )
