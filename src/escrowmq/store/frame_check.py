"""Check that the messages in a frame agree with the frame's records.

The frame's checksums were verified before, so a mismatch found here is not bit rot: the frame was
written wrong.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.properties import PGROUP, parse_properties
from escrowmq.protocol.stored_message import skim
from escrowmq.store.commit_log import segment_path
from escrowmq.transaction.records import (
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

_LOG_OFFSET = slice(28, 36)

_Bringing = Stored | Scheduled | Prepared | Moved


class FrameCheck:
    """Checks frames in log order, and collects the names of queues and origins."""

    def __init__(self, checkpoint: Checkpoint | None, report: Report) -> None:
        self._report = report
        #: By number: the names from the checkpoint or the log, or else from the messages.
        self.queues: dict[int, NamedQueue] = {}
        self.origins: dict[int, NamedOrigin] = {}
        if checkpoint is not None:
            self.queues = {named.id: named for named in checkpoint.queues}
            self.origins = {named.id: named for named in checkpoint.origins}

    def read(self, found: FoundFrame) -> None:
        """Check one frame."""
        for record in found.frame.records:
            if isinstance(record, NamedQueue):
                self.queues[record.id] = record
            elif isinstance(record, NamedOrigin):
                self.origins[record.id] = record
            elif isinstance(record, _Bringing):
                self._messages(found, record)

    def _messages(self, found: FoundFrame, record: _Bringing) -> None:
        data = found.messages()
        start = found.frame.messages
        at = 0
        columns = zip(
            record.placed.queues, record.placed.sizes, _numbers(record, start), strict=True
        )
        for queue, size, numbers in columns:
            message = data[at : at + size]
            try:
                _, queue_id, queue_offset, _, topic, properties = skim(message)
            except ProtocolViolation as violation:
                self._note(found, start + at, f"a message cannot be read: {violation.message}")
            else:
                stated = queue_offset, int.from_bytes(message[_LOG_OFFSET], "big")
                if stated != numbers:
                    self._note(found, start + at, "a message stands at another place than it says")
                named = self.queues.setdefault(queue, NamedQueue(queue, topic, queue_id))
                if (named.topic, named.queue_id) != (topic, queue_id):
                    self._note(found, start + at, "a message is for another queue than is recorded")
                if isinstance(record, Prepared) and record.origin not in self.origins:
                    group = _group(properties)
                    self.origins[record.origin] = NamedOrigin(record.origin, group, "", 0)
            at += size

    def _note(self, found: FoundFrame, at: int, what: str) -> None:
        self._report.note("message_mismatch", segment_path(found.segment.start), what, at=at)


def _numbers(record: _Bringing, log_offset: int) -> list[tuple[int, int]]:
    """Return the queue offset and log offset that each message must state."""
    if isinstance(record, Moved):
        return [(row.half_offset, row.log_offset) for row in record.rows]
    log_offsets = accumulate(record.placed.sizes[:-1], initial=log_offset)
    if isinstance(record, Stored):
        return list(zip(record.queue_offsets, log_offsets, strict=True))
    return list(enumerate(log_offsets, record.first))


def _group(properties: bytes) -> str:
    try:
        return parse_properties(properties).get(PGROUP, "")
    except ProtocolViolation:
        return ""
