"""The record of a recall: a delayed message that its sender took back before its time."""

from __future__ import annotations

import msgspec


class Recalled(msgspec.Struct, frozen=True, array_like=True, tag=29, gc=False):
    """A delayed message was recalled while it waited: it never becomes visible."""

    row: int
    #: The queue in which it would have become visible.
    queue: int
    #: The client that recalled it.
    by: str
