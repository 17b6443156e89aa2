"""One attempt: what one call of a task's ``write`` holds at brokers, request by request.

While one request is being sent, the next is prepared. Nothing is visible before the driver decides
the batch. A failed attempt is rolled back at once if possible; otherwise it is found later
(``orphans.py``).

An attempt is opened at home before any other broker holds a part of it, because a part without a
home would never end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.model.errors import EscrowError, OutcomeUnknown, RequestRefused, Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.model.sink_attempt import OPENING_TOPIC, HeldAs, SinkAttempt
from escrowmq.pipeline.sink.calls import SinkCalls
from escrowmq.pipeline.sink.contents import RowSum
from escrowmq.pipeline.sink.deciding import give_up
from escrowmq.pipeline.sink.messages import MessageMaker
from escrowmq.pipeline.sink.placing import Placing
from escrowmq.pipeline.sink.topics import SinkTopics
from escrowmq.pipeline.sink.written import NOTHING_HELD, AttemptPart, SinkBroker, Written

log = event_log(__name__)

REQUEST_ROWS_MAX = 4_096
"""About 20 ms of the broker's time, during which other clients wait.

Smaller requests cost it more per row.
"""

REQUEST_BYTES_MAX = 8 * 1024 * 1024
"""Half the limit of a frame on the wire or in the log."""

ADDED_BYTES = 512
"""The approximate number of bytes that the broker adds to each message."""


class AttemptWriting:
    """Sends an attempt's requests: to all brokers at once, to each broker one at a time."""

    def __init__(
        self,
        calls: SinkCalls,
        attempt: SinkAttempt,
        topic: str,
        rows_max: int,
        *,
        home: str = "",
        others: Sequence[tuple[SinkBroker, SinkCalls]] = (),
        is_summed: bool = False,
    ) -> None:
        self._attempt = attempt
        self._rows_max = rows_max
        self._home = _PartWriting(SinkBroker(home, calls.address), calls)
        self._home.held_as = attempt.at_home
        self._parts = [self._home, *(_PartWriting(broker, calls) for broker, calls in others)]
        names = [part.broker.name for part in self._parts]
        self._placing = Placing(names, attempt.partition) if others else None
        # Ids as the SDK makes them: a random prefix, then a counter.
        prefix = attempt.attempt[:20].upper()
        topics = [SinkTopics(part.calls.topics, part.broker.name) for part in self._parts]
        self._maker = MessageMaker(topics[0], topic, prefix, topics[1:])
        self._sum = RowSum(topic)
        self._is_summed = is_summed

    def write(self, batches: Iterator[Any]) -> Written:
        """Hold all rows of these Arrow batches."""
        try:
            with ThreadPoolExecutor(len(self._parts)) as background:
                for part, request in self._requests(batches):
                    part.wait()
                    self._name(part)
                    part.flying = background.submit(part.hold, request)
                for part in self._parts:
                    part.wait()
        except (Unavailable, OutcomeUnknown):
            # The broker is unreachable, so a rollback would not arrive.
            raise
        except BaseException:
            self._give_up()
            raise
        return self.written

    @property
    def written(self) -> Written:
        """The report of everything held so far."""
        home, others = self._home, self._parts[1:]
        elsewhere = tuple(part.held for part in others if part.sent)
        return Written(
            self._attempt,
            home.head,
            home.sent - 1,
            home.rows,
            elsewhere,
            row_count=self._sum.rows,
            row_sum=self._sum.total,
        )

    def _requests(self, batches: Iterator[Any]) -> Iterator[tuple[_PartWriting, Any]]:
        for batch in batches:
            if self._is_summed:
                self._sum.add(batch)
            for start in range(0, batch.num_rows, self._rows_max):
                rows = batch.slice(start, self._rows_max)
                if self._placing is None:
                    yield from ((self._home, one) for one in _pieces(self._maker.messages(rows)))
                    continue
                places = self._placing.places(rows)
                messages = self._maker.messages(rows, places)
                # Home's rows come first, so that no extra message is needed to open the attempt
                # there.
                for place in np.unique(places).tolist():
                    its = messages.filter(pa.array(places == place))
                    yield from ((self._parts[place], one) for one in _pieces(its))

    def _name(self, part: _PartWriting) -> None:
        """Give a part its ids, which contain the attempt's half offset at home."""
        if part.held_as is not None:
            return
        self._home.wait()
        if not self._home.sent:
            self._home.hold(opening())
        part.held_as = self._attempt.elsewhere(self._home.broker.name, self._home.head)

    def _give_up(self) -> None:
        """Roll back this attempt, which no decision will name."""
        for part in self._parts:
            with suppress(Exception):
                part.wait()
        try:
            give_up(self._home.calls, [self.written])
        except EscrowError as error:
            extra = {"transaction_id": self._attempt.transaction_id, "why": str(error)}
            log.warning("attempt_left_behind", extra=extra)


class _PartWriting:
    """The part of the attempt that one broker holds."""

    def __init__(self, broker: SinkBroker, calls: SinkCalls) -> None:
        self.broker = broker
        self.calls = calls
        self.held_as: HeldAs | None = None
        self.flying: Future[None] | None = None
        self.head = NOTHING_HELD
        self.sent = 0
        self.rows = 0

    @property
    def held(self) -> AttemptPart:
        assert self.held_as is not None, "it was named before it was sent"
        return AttemptPart(self.broker, self.held_as, self.head, self.sent - 1, self.rows)

    def wait(self) -> None:
        """Wait for the answer to its last request."""
        flying, self.flying = self.flying, None
        if flying is not None:
            flying.result()

    def hold(self, request: Any) -> None:  # noqa: ANN401 - an Arrow batch
        """Send one request, or two halves if it is too large."""
        assert self.held_as is not None, "it was named before"
        try:
            half_offset = self.calls.hold(self.held_as, self.sent, request)
        except RequestRefused as refused:
            count = request.num_rows
            if refused.code != "request_too_large" or count == 1:
                raise
            # The broker is configured with a lower limit.
            self.hold(request.slice(0, count // 2))
            self.hold(request.slice(count // 2))
            return
        if not self.sent:
            self.head = half_offset
        self.sent += 1
        self.rows += request.num_rows


def opening() -> pa.RecordBatch:
    """The message that opens an attempt at home if no row goes there."""
    return pa.record_batch(
        {
            "topic": [OPENING_TOPIC],
            "queue_id": pa.array([0], pa.int32()),
            "body": [b""],
            "properties": [""],
            "flag": pa.array([0], pa.int32()),
            "sys_flag": pa.array([0], pa.int32()),
            "born_at_ms": pa.array([0], pa.int64()),
        }
    )


def _pieces(messages: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split messages into pieces that fit into one request."""
    sizes = pc.add(pc.binary_length(messages["body"]), pc.binary_length(messages["properties"]))
    ends = np.cumsum(sizes.to_numpy() + np.int64(ADDED_BYTES))
    start = 0
    while start < len(ends):
        before = ends[start - 1] if start else 0
        end = int(np.searchsorted(ends, before + REQUEST_BYTES_MAX, side="right"))
        # A single message always fits into a request.
        end = max(end, start + 1)
        yield messages.slice(start, end - start)
        start = end
