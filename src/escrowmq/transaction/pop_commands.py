"""Commands about pop positions: see ``memory/pops.py``."""

from __future__ import annotations

import msgspec

from escrowmq.model.message import SentMessage


class PlacePop(msgspec.Struct, frozen=True, kw_only=True):
    """Let a group read a queue by pop from here, or end that."""

    group: str
    #: The queue's number, which also names the topic's incarnation.
    queue: int
    prefix: int
    above: bytes = b""
    is_ended: bool = False


class PopAcks(msgspec.Struct, frozen=True):
    """Queue offsets to acknowledge in one queue."""

    queue: int
    #: Messages below are deleted, so they count as acknowledged.
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


PopCommand = PlacePop | Acknowledge | BuryMessages
