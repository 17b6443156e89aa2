"""Decisions about users.

The functions read the core and return a ``Decision``; none changes the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.errors import RequestRefused
from escrowmq.model.users import POLICIES_MAX
from escrowmq.transaction.commands import Cataloged, Decision
from escrowmq.transaction.decisions.answers import refuse
from escrowmq.transaction.decisions.cataloging import checked
from escrowmq.transaction.user_commands import NEW
from escrowmq.transaction.user_records import AccessWasOn, UserPut, UserRemoved

if TYPE_CHECKING:
    from escrowmq.model.users import User
    from escrowmq.transaction.core import Transactions
    from escrowmq.transaction.memory.catalog import Catalog, KeptUser
    from escrowmq.transaction.user_commands import MarkAccess, PutUser, RemoveUser


def put_user(core: Transactions, command: PutUser, _now_ms: int) -> Decision:
    """Create the user, or change it if it is still as the caller has seen it."""
    catalog, user = core.catalog, command.user
    known = catalog.users.get(user.name)
    refused = _stale(known, command) or _taken(catalog, user)
    if refused is not None:
        return refused
    if len(user.policies) > POLICIES_MAX:
        return refuse(
            "policies_limit",
            "write fewer policies, each for more resources, such as `Topic:order-*`",
            user=user.name,
            policies=len(user.policies),
            policies_max=POLICIES_MAX,
        )
    try:
        user = checked(user, catalog.users, core.limits.users_max, "users")
    except RequestRefused as error:
        return Decision(refused=error)
    if known is not None and known.user == user:
        return Decision(reply=Cataloged(is_changed=False))
    record = UserPut(user, catalog.user_versions_end, command.by)
    return Decision(records=(record,), reply=Cataloged(is_changed=True))


def _stale(known: KeptUser | None, command: PutUser) -> Decision | None:
    """Refuse a command of a caller that has not seen the user as it is; None if it has."""
    name = command.user.name
    if known is None:
        return None if command.seen == NEW else user_unknown(name)
    if command.seen == NEW:
        return refuse("user_exists", "choose another name, or change this user", user=name)
    if command.seen != known.version:
        return refuse(
            "user_changed",
            "another change of this user came first; read the user again",
            user=name,
            version=known.version,
            seen=command.seen,
        )
    return None


def _taken(catalog: Catalog, user: User) -> Decision | None:
    """Refuse a user whose access key or certificate stands for another one; None if none does."""
    if catalog.access_keys.get(user.access_key, user.name) != user.name:
        return refuse(
            "access_key_taken", "another user has this access key", access_key=user.access_key
        )
    for subject in user.certificate_names:
        if catalog.certificates.get(subject, user.name) != user.name:
            return refuse(
                "certificate_name_taken", "another user has this certificate", subject=subject
            )
    return None


def remove_user(core: Transactions, command: RemoveUser, _now_ms: int) -> Decision:
    """Remove the user."""
    if command.name not in core.catalog.users:
        return user_unknown(command.name)
    record = UserRemoved(command.name, command.by)
    return Decision(records=(record,), reply=Cataloged(is_changed=True))


def mark_access(core: Transactions, _command: MarkAccess, _now_ms: int) -> Decision:
    """Record, once, that access control is on."""
    if core.catalog.was_access_on:
        return Decision(reply=Cataloged(is_changed=False))
    return Decision(records=(AccessWasOn(),), reply=Cataloged(is_changed=True))


def user_unknown(name: str) -> Decision:
    """Refuse a command about a user that does not exist."""
    return refuse("user_unknown", "`escrowmq user list` shows all users", user=name)
