"""One attempt: what one call of a task's ``write`` holds at the broker, request by request.

While one request is on its way the next is made.  Nothing of it is visible before the driver
decides the batch.  An attempt that fails is rolled back at once if that is possible; if not, it is
found later (``sink_orphans``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.model.errors import EscrowError, OutcomeUnknown, RequestRefused, Unavailable
from escrowmq.model.sink_attempt import SinkAttempt
from escrowmq.pipeline.sink_calls import NOTHING_HELD, SinkCalls, Written
from escrowmq.pipeline.sink_messages import MessageMaker
from escrowmq.pipeline.sink_topics import SinkTopics

log = logging.getLogger(__name__)

REQUEST_ROWS_MAX = 4_096
"""About 20 ms of the broker, for which everybody else waits; more of them cost it more per row."""

REQUEST_BYTES_MAX = 8 * 1024 * 1024
"""Half of what a frame of the wire or of the log may have."""

ADDED_BYTES = 512
"""What the broker adds to each message, about."""


class AttemptWriting:
    """Sends the requests of one attempt, one after the other."""

    def __init__(
        self, calls: SinkCalls, attempt: SinkAttempt, topic: str, rows_max: int = REQUEST_ROWS_MAX
    ) -> None:
        self._calls = calls
        self._attempt = attempt
        self._rows_max = rows_max
        # As the SDK makes ids: random, then counted.
        prefix = attempt.attempt[:20].upper()
        self._maker = MessageMaker(SinkTopics(calls.topics), topic, prefix)
        self._head = NOTHING_HELD
        self._sent = 0
        self._rows = 0

    def write(self, batches: Iterator[Any]) -> Written:
        """Hold all rows of these Arrow batches."""
        try:
            with ThreadPoolExecutor(1) as background:
                flying: Future[None] | None = None
                for request in self._requests(batches):
                    if flying is not None:
                        flying.result()
                    flying = background.submit(self._hold, request)
                if flying is not None:
                    flying.result()
        except (Unavailable, OutcomeUnknown):
            # The broker is away: it could not be told.
            raise
        except BaseException:
            self._give_up()
            raise
        return self.written

    @property
    def written(self) -> Written:
        """What is held so far."""
        return Written(self._attempt, self._head, self._sent - 1, self._rows)

    def _requests(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for start in range(0, batch.num_rows, self._rows_max):
                yield from _pieces(self._maker.messages(batch.slice(start, self._rows_max)))

    def _hold(self, request: Any) -> None:  # noqa: ANN401 - an Arrow batch
        try:
            half_offset = self._calls.hold(self._attempt, self._sent, request)
        except RequestRefused as refused:
            count = request.num_rows
            if refused.code != "request_too_large" or count == 1:
                raise
            # The broker's owner allows less than we thought.
            self._hold(request.slice(0, count // 2))
            self._hold(request.slice(count // 2))
            return
        if not self._sent:
            self._head = half_offset
        self._sent += 1
        self._rows += request.num_rows

    def _give_up(self) -> None:
        """Nobody will name this attempt."""
        try:
            self._calls.roll_back([self.written])
        except EscrowError as error:
            extra = {"transaction_id": self._attempt.transaction_id, "why": str(error)}
            log.warning("attempt_left_behind", extra=extra)


def _pieces(messages: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The same messages in pieces that are not too large for one request."""
    sizes = pc.add(pc.binary_length(messages["body"]), pc.binary_length(messages["properties"]))
    ends = np.cumsum(sizes.to_numpy() + np.int64(ADDED_BYTES))
    start = 0
    while start < len(ends):
        before = ends[start - 1] if start else 0
        end = int(np.searchsorted(ends, before + REQUEST_BYTES_MAX, side="right"))
        # One message is never too large for a request.
        end = max(end, start + 1)
        yield messages.slice(start, end - start)
        start = end
