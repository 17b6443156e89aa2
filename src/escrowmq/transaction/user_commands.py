"""Commands about users."""

from __future__ import annotations

import msgspec

from escrowmq.model.users import User

NEW = -1
"""The version of a user that does not exist."""


class UserChange(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the commands that change a user; ``by`` is the caller, for the log."""

    by: str


class PutUser(UserChange, frozen=True, kw_only=True):
    """Create a user, or change it as a whole."""

    user: User
    #: The version that the caller has seen, so that two changes at once do not undo each other;
    #: ``NEW`` to create the user.
    seen: int


class RemoveUser(UserChange, frozen=True, kw_only=True):
    """Remove a user."""

    name: str


class MarkAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Record that access control is on."""


UserCommand = PutUser | RemoveUser | MarkAccess
