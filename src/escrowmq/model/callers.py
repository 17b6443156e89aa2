"""Who makes a request: a user that signed it, or nobody."""

from __future__ import annotations

from typing import Protocol


class Caller(Protocol):
    """The user of a request, as far as its handlers know it."""

    @property
    def name(self) -> str:
        """The user's name."""
        ...


LOCAL_ADMIN = "@local-admin"
"""Access key of the admin that has the token in the data directory. No user can have this name."""
