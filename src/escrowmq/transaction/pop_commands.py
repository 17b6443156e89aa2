"""Commands about pop positions: see ``memory/pops.py``."""

from __future__ import annotations

import msgspec

from escrowmq.model.message import SentMessage


class PopPlace(msgspec.Struct, frozen=True):
    """Where a group begins to read a queue by pop, or that it stops doing so."""

    #: The queue's number, which also names the topic's incarnation.
    queue: int
    #: The group's position becomes this, unless it has a lower one.
    prefix: int
    is_ended: bool = False
    #: The group's position becomes this, even if it has a lower one.
    is_reset: bool = False


class PlacePops(msgspec.Struct, frozen=True, kw_only=True):
    """Let a group read queues by pop from these places, or end that, all in one frame."""

    group: str
    places: tuple[PopPlace, ...]


class PopAcks(msgspec.Struct, frozen=True):
    """Queue offsets to acknowledge in one queue."""

    queue: int
    #: Messages below this queue offset are deleted, so they count as acknowledged.
    start: int
    #: ``(first, count)`` of each run.
    ranges: tuple[tuple[int, int], ...]


class Acknowledge(msgspec.Struct, frozen=True, kw_only=True):
    """Acknowledge messages of several queues for one group, all in one frame."""

    group: str
    acks: tuple[PopAcks, ...]


class BuryMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Store dead letters, and acknowledge their originals in the same frame."""

    messages: tuple[SentMessage, ...]
    acknowledges: Acknowledge


PopCommand = PlacePops | Acknowledge | BuryMessages
