"""Commands that expire unused names."""

from __future__ import annotations

import msgspec


class ExpireOrigins(msgspec.Struct, frozen=True, kw_only=True):
    """Expire those of these origins that are unused."""

    numbers: tuple[int, ...]


class ExpireQueries(msgspec.Struct, frozen=True, kw_only=True):
    """Expire those of these queries of Spark sinks that are unused: pairs of app and query."""

    queries: tuple[tuple[str, str], ...]


class NoteUses(msgspec.Struct, frozen=True, kw_only=True):
    """Record that these consumer groups and topics were used since the last note."""

    groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()


class ExpireGroups(msgspec.Struct, frozen=True, kw_only=True):
    """Expire those of these consumer groups that are unused.

    The sender of the command has checked that no queue still holds the message that one of them
    would read next.
    """

    names: tuple[str, ...]


class ExpireTopic(msgspec.Struct, frozen=True, kw_only=True):
    """Expire a topic if it is unused; all its queues were empty at these ends."""

    name: str
    #: Queue number -> queue offset.
    queue_ends: dict[int, int]


ExpiryCommand = ExpireOrigins | ExpireQueries | NoteUses | ExpireGroups | ExpireTopic
