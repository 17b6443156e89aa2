"""Check that the messages in a frame agree with the frame's records.

The frame's checksums were verified before, so a mismatch found here is not bit rot: the frame was
written wrong.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, assert_never

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.properties import PGROUP, parse_properties
from escrowmq.protocol.message.stored_message import LOG_OFFSET_PLACE, skim
from escrowmq.store.log.commit_log import segment_path
from escrowmq.transaction import records as kinds
from escrowmq.transaction.records import MessageRecord, NamedOrigin, NamedQueue, Prepared

if TYPE_CHECKING:
    from escrowmq.store.checkpoint.checkpoint import Checkpoint
    from escrowmq.store.repair.log_walk import FoundFrame
    from escrowmq.store.repair.report import StoreReport


class FrameCheck:
    """Checks frames in log order, and collects the names of queues and origins."""

    def __init__(self, checkpoint: Checkpoint | None, report: StoreReport) -> None:
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
            match record:
                case NamedQueue():
                    self.queues[record.id] = record
                case NamedOrigin():
                    self.origins[record.id] = record
                case _ if isinstance(record, MessageRecord):
                    self._messages(found, record)
                case _ if isinstance(record, kinds.Op | kinds.Released | kinds.QuietRecord):
                    pass
                case _:
                    assert_never(record)

    def _messages(self, found: FoundFrame, record: MessageRecord) -> None:
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
                stated = queue_offset, int.from_bytes(message[LOG_OFFSET_PLACE], "big")
                if stated != numbers:
                    self._note(
                        found, start + at, "a message is at another log offset than it states"
                    )
                named = self.queues.setdefault(queue, NamedQueue(queue, topic, queue_id))
                if (named.topic, named.queue_id) != (topic, queue_id):
                    self._note(found, start + at, "a message names another queue than its record")
                if isinstance(record, Prepared) and record.origin not in self.origins:
                    group = _group(properties)
                    self.origins[record.origin] = NamedOrigin(record.origin, group, "", 0)
            at += size

    def _note(self, found: FoundFrame, at: int, what: str) -> None:
        self._report.note("message_mismatch", segment_path(found.segment.start), what, at=at)


def _numbers(record: MessageRecord, log_offset: int) -> list[tuple[int, int]]:
    """Return the queue offset and log offset that each message must state."""
    log_offsets = accumulate(record.placed.sizes[:-1], initial=log_offset)
    match record:
        case kinds.Carried():
            return [(row.half_offset, row.log_offset) for row in record.rows]
        case kinds.Stored():
            return list(zip(record.queue_offsets, log_offsets, strict=True))
        case kinds.Scheduled() | kinds.Prepared():
            return list(enumerate(log_offsets, record.first))
        case _:
            assert_never(record)


def _group(properties: bytes) -> str:
    try:
        return parse_properties(properties).get(PGROUP, "")
    except ProtocolViolation:
        return ""
