"""What the sink asks of its broker: each request may be repeated, and is, for a bounded time.

Half messages are numbered, a batch is decided once, and what is committed cannot be rolled back.
So an answer that was lost is simply asked for again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pyspark.sql.datasource import WriterCommitMessage

from escrowmq.client.own_calls import ANSWER_S, OwnCalls
from escrowmq.model.errors import OutcomeUnknown, RequestRefused, Unavailable
from escrowmq.model.sink_attempt import AGE_MS_MAX, SinkAttempt, SinkRun
from escrowmq.protocol.own import OWN_REQUESTS, OwnCode
from escrowmq.protocol.own_headers import (
    ByHeader,
    DecideBatchHeader,
    HoldHeader,
    ListTransactionsHeader,
)
from escrowmq.protocol.own_rows import AttemptRow, DecisionRow, TopicRow

FIRST_WAIT_S = 0.05
WAIT_MAX_S = 2.0
NOTHING_HELD = -1

T = TypeVar("T")


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver: all that is needed to decide, on whichever object does."""

    attempt: SinkAttempt
    #: The attempt's first half message; ``NOTHING_HELD`` if it had no rows.
    head: int
    #: The number of its last request.
    last_number: int
    rows: int


class SinkCalls:
    """A connection to the broker; one thread uses it at a time."""

    def __init__(self, address: str, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1_000
        self._calls = OwnCalls(address, answer_s=min(ANSWER_S, self._timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.close()

    def topics(self) -> list[TopicRow]:
        """All topics."""
        return self._patiently(lambda: list(self._calls.rows(OwnCode.LIST_TOPICS)))

    def hold(self, attempt: SinkAttempt, number: int, batch: Any) -> int:  # noqa: ANN401 - an Arrow batch
        """Hold half messages, durably; the first one's half offset."""
        header = HoldHeader(
            producer_group=attempt.run.producer_group,
            transaction_id=attempt.transaction_id,
            number=number,
            is_bulk=True,
            check_after_ms=AGE_MS_MAX,
        )
        answer = self._patiently(lambda: self._calls.call_arrow(OwnCode.HOLD_HALVES, header, batch))
        half_offset: int = answer.header.half_offset
        return half_offset

    def decide(self, run: SinkRun, batch: int | str, written: Sequence[Written]) -> str:
        """Commit these attempts, all or none: ``decided``, or ``already_done`` if they were not."""
        attempts_max = OWN_REQUESTS[OwnCode.DECIDE_BATCH].rows_max
        held = [one for one in written if one.rows]
        if len(held) > attempts_max:
            raise RequestRefused(
                "too_many_partitions",
                f"coalesce the DataFrame to at most {attempts_max} partitions",
                partitions=len(held),
            )
        header = DecideBatchHeader(
            app_id=run.app_id,
            query_id=run.query_id,
            batch_number=batch if isinstance(batch, int) else None,
            batch_name=batch if isinstance(batch, str) else None,
            by=by(run),
        )
        rows = [
            AttemptRow(
                transaction_id=one.attempt.transaction_id,
                last_number=one.last_number,
                messages=one.rows,
            )
            for one in held
        ]
        answer = self._patiently(lambda: self._calls.call(OwnCode.DECIDE_BATCH, header, rows))
        outcome: str = answer.header.outcome
        return outcome

    def roll_back(self, written: Sequence[Written]) -> None:
        """Roll back what is not decided of these attempts; what is committed stays so."""
        held = {one.head: one for one in written if one.rows}
        if not held:
            return
        listing = ListTransactionsHeader(start=min(held), end=max(held) + 1)
        # Asked first: to contradict a decision would raise an alert.
        listed = self._patiently(lambda: list(self._calls.rows(OwnCode.LIST_TRANSACTIONS, listing)))
        undecided = [held[row.half_offset] for row in listed if row.half_offset in held]
        rows_max = OWN_REQUESTS[OwnCode.DECIDE_MANY].rows_max
        for start in range(0, len(undecided), rows_max):
            self._roll_back(undecided[start : start + rows_max])

    def _roll_back(self, undecided: Sequence[Written]) -> None:
        rows = [
            DecisionRow(
                half_offset=one.head,
                resolution="rollback",
                producer_group=one.attempt.run.producer_group,
                log_offset=None,
            )
            for one in undecided
        ]
        header = ByHeader(by=by(undecided[0].attempt.run))
        self._patiently(lambda: self._calls.call(OwnCode.DECIDE_MANY, header, rows))

    def _patiently(self, ask: Callable[[], T]) -> T:
        until = time.monotonic() + self._timeout_s
        wait_s = FIRST_WAIT_S
        while True:
            try:
                return ask()
            except (Unavailable, OutcomeUnknown):
                if time.monotonic() + wait_s >= until:
                    raise
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, WAIT_MAX_S)


def by(run: SinkRun) -> str:
    """Who decides, for the record."""
    return f"sink {run.app_id} {run.run}"
