"""Commands by which a broker lets names go that nobody uses any more."""

from __future__ import annotations

import msgspec


class ExpireOrigins(msgspec.Struct, frozen=True, kw_only=True):
    """Let those of these origins go that nobody uses."""

    numbers: tuple[int, ...]


class ExpireQueries(msgspec.Struct, frozen=True, kw_only=True):
    """Let those of these queries of Spark sinks go that decide nothing: apps and queries."""

    queries: tuple[tuple[str, str], ...]


class NoteUses(msgspec.Struct, frozen=True, kw_only=True):
    """Note that these consumer groups and topics were used since the last note."""

    groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()


class ExpireGroups(msgspec.Struct, frozen=True, kw_only=True):
    """Let those of these consumer groups go that nobody uses; none has a retained backlog."""

    names: tuple[str, ...]


class ExpireTopic(msgspec.Struct, frozen=True, kw_only=True):
    """Let a topic go if nobody uses it; all its queues were empty at these ends."""

    name: str
    #: By the number of a queue.
    queue_ends: dict[int, int]
