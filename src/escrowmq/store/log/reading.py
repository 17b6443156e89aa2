"""Reads single frames and messages from the log, and verifies them first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.errors import StoreCorrupt
from escrowmq.protocol.message.stored_message import decode, record_crc
from escrowmq.store.log.frames import HEAD_BYTES, read_frame, stated_head
from escrowmq.transaction.records import PLAIN, UNNUMBERED, Op, request_in
from escrowmq.transaction.table import FIRST

if TYPE_CHECKING:
    from escrowmq.model.message import SentMessage
    from escrowmq.store.log.commit_log import CommitLog
    from escrowmq.store.log.frames import Frame
    from escrowmq.store.queue.lost import LostRanges
    from escrowmq.transaction.table import Half


REMEMBERED_MAX = 1_024
"""Requests whose identity is cached; the next request of the same transaction needs it."""
LOST_BY = "unknown, lost with damaged bytes"


class LogReading:
    """Reads the log by offset."""

    def __init__(self, log: CommitLog, seed: int, lost: LostRanges) -> None:
        self._log = log
        self._seed = seed
        self._lost = lost
        #: By first row: ids and numbers of very large requests, whose frames take long to verify.
        self._identities: dict[int, tuple[str, int]] = {}

    def record(self, log_offset: int, size: int, crc: int) -> bytes:
        """Return a stored message as it was written."""
        data = self._log.read(log_offset, size)
        if record_crc(data) != crc:
            raise StoreCorrupt(
                "message_damaged",
                "run `escrowmq store check`",
                log_offset=log_offset,
                size=size,
            )
        return data

    def record_of(self, half: Half) -> bytes:
        """Return a half message as it was written."""
        return self.record(half.location, half.size, half.crc)

    def frame(self, log_offset: int) -> Frame:
        """Return a whole, verified frame."""
        head = stated_head(self._log.read(log_offset, HEAD_BYTES))
        data = self._log.read(log_offset, head.length) if head else b""
        frame = read_frame(data, 0, log_offset, self._seed)
        if frame is None:
            raise StoreCorrupt("frame_damaged", "run `escrowmq store check`", log_offset=log_offset)
        return frame

    def identity(self, half: Half) -> tuple[str, int]:
        """Return the transaction id and number of a request, by its first row.

        The whole frame is verified: a damaged id would look like a new one, and a message that its
        sender repeats would be held twice. The id is empty if retention has deleted the frame,
        damage has destroyed it, or the row does not start a request of a transaction.
        """
        known = self._identities.get(half.half_offset)
        if known is not None:
            return known
        start = half.location - HEAD_BYTES
        is_named = half.part & FIRST and half.origin != PLAIN
        if start < self._log.start or not is_named or self._lost.hold(start):
            return "", UNNUMBERED
        found = request_in(self.frame(start).records, half.half_offset)
        return (found.transaction_id, found.number) if found else ("", UNNUMBERED)

    def remember(self, first: int, transaction_id: str, number: int) -> None:
        """Cache the identity of a request that is being written."""
        if len(self._identities) >= REMEMBERED_MAX:
            del self._identities[next(iter(self._identities))]
        self._identities[first] = (transaction_id, number)

    def holds(self, half: Half, message: SentMessage) -> bool:
        """Whether the stored half has this message's topic and body."""
        stored = decode(self.record_of(half))
        return (stored.topic, stored.body) == (message.topic, message.body)

    def decision(self, op_offset: int) -> tuple[str, int]:
        """Return who decided in this frame, and when; ("", 0) once retention has deleted it."""
        if op_offset < self._log.start:
            return "", 0
        if self._lost.hold(op_offset):
            return LOST_BY, 0
        frame = self.frame(op_offset)
        for record in frame.records:
            if isinstance(record, Op):
                return record.by, frame.stored_at_ms
        raise StoreCorrupt("op_record_missing", "run `escrowmq store check`", log_offset=op_offset)
