"""Whether the messages in a frame are those that its records speak of.

The frame's checksum is right when this looks at it, so what is found here is no rot: the frame was
written wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.properties import PGROUP, parse_properties
from escrowmq.protocol.stored_message import skim
from escrowmq.store.commit_log import segment_path
from escrowmq.store.frames import HEAD_BYTES
from escrowmq.transaction.records import (
    Lost,
    Moved,
    NamedOrigin,
    NamedQueue,
    Prepared,
    Scheduled,
    Stored,
)

if TYPE_CHECKING:
    from escrowmq.store.checkpoint import Checkpoint
    from escrowmq.store.log_walk import FoundFrame
    from escrowmq.store.report import Report
    from escrowmq.transaction.records import Record

_LOG_OFFSET = slice(28, 36)

_Bringing = Stored | Scheduled | Prepared | Moved


class FrameCheck:
    """Goes over frames in the order of the log, and learns the names of queues on the way."""

    def __init__(self, checkpoint: Checkpoint | None, report: Report) -> None:
        self._report = report
        #: By number: as the checkpoint or the log names them, or else as their messages do.
        self.queues: dict[int, NamedQueue] = {}
        self.origins: dict[int, NamedOrigin] = {}
        if checkpoint is not None:
            self.queues = {named.id: named for named in checkpoint.queues}
            self.origins = {named.id: named for named in checkpoint.origins}

    def read(self, found: FoundFrame, records: list[Record]) -> None:
        """Check one frame."""
        place = HEAD_BYTES
        for record in records:
            if isinstance(record, NamedQueue):
                self.queues[record.id] = record
            elif isinstance(record, NamedOrigin):
                self.origins[record.id] = record
            elif isinstance(record, Lost):
                return
            elif isinstance(record, _Bringing):
                place = self._messages(found, record, place)
        if place != found.frame.records_at:
            self._note(found, place, "its records speak of other messages than it holds")

    def _messages(self, found: FoundFrame, record: _Bringing, place: int) -> int:
        placed = record.placed
        numbers = _numbers(record, found.frame.log_offset + place)
        if not len(numbers) == len(placed.sizes) == len(placed.crcs) == len(placed.queues):
            self._note(found, place, "its record does not say the same number of things of each")
            return found.frame.records_at
        for index, (size, crc) in enumerate(zip(placed.sizes, placed.crcs, strict=True)):
            if place + size > found.frame.records_at:
                break
            data = bytes(found.bytes_of(place, size))
            if crc32(data) != crc:
                self._note(found, place, "a message does not have the CRC-32 that is stated")
            else:
                self._message(found, place, data, (record, index), numbers[index])
            place += size
        return place

    def _message(
        self,
        found: FoundFrame,
        place: int,
        data: bytes,
        of: tuple[_Bringing, int],
        numbers: tuple[int, int],
    ) -> None:
        record, index = of
        try:
            size, queue_id, queue_offset, _, topic, properties = skim(data)
        except ProtocolViolation as violation:
            self._note(found, place, f"a message cannot be read: {violation.message}")
            return
        log_offset = int.from_bytes(data[_LOG_OFFSET], "big")
        if size != len(data) or (queue_offset, log_offset) != numbers:
            self._note(found, place, "a message stands at another place than it says")
        queue = record.placed.queues[index]
        named = self.queues.setdefault(queue, NamedQueue(queue, topic, queue_id))
        if (named.topic, named.queue_id) != (topic, queue_id):
            self._note(found, place, "a message is for another queue than its record says")
        if isinstance(record, Prepared) and record.origin not in self.origins:
            self.origins[record.origin] = NamedOrigin(record.origin, _group(properties), "", 0)

    def _note(self, found: FoundFrame, place: int, what: str) -> None:
        self._report.note(
            "message_mismatch",
            segment_path(found.segment.start),
            what,
            at=found.frame.log_offset + place,
        )


def _numbers(record: _Bringing, log_offset: int) -> list[tuple[int, int]]:
    """Queue offset and log offset that each message must state."""
    if isinstance(record, Moved):
        return [(row.half_offset, row.log_offset) for row in record.rows]
    log_offsets = []
    for size in record.placed.sizes:
        log_offsets.append(log_offset)
        log_offset += size
    if isinstance(record, Stored):
        return list(zip(record.queue_offsets, log_offsets, strict=False))
    return list(enumerate(log_offsets, record.first))


def _group(properties: bytes) -> str:
    try:
        return parse_properties(properties).get(PGROUP, "")
    except ProtocolViolation:
        return ""
