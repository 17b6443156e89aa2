"""Records of users: who may use the broker, and that it ever asked."""

from __future__ import annotations

import msgspec

from escrowmq.model.users import User


class UserPut(msgspec.Struct, frozen=True, array_like=True, tag=30):
    """The user is created, or changed as a whole."""

    user: User
    #: Never used again, not even for a user of the same name.
    version: int
    by: str = ""


class UserRemoved(msgspec.Struct, frozen=True, array_like=True, tag=31, gc=False):
    """The user is removed."""

    name: str
    by: str = ""


class AccessWasOn(msgspec.Struct, frozen=True, array_like=True, tag=32, gc=False):
    """Access control is on: from here on, a broker without users admits nobody."""


UserRecord = UserPut | UserRemoved | AccessWasOn
"""Records about users."""
