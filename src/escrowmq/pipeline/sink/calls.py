"""The sink's requests to a broker, each repeated for a limited time.

Repeating is safe: half messages are numbered, a batch is decided once, and a committed transaction
cannot be rolled back. So if an answer is lost, the request is sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any, Self, TypeVar

from escrowmq.client.network.native_calls import ANSWER_S, NativeCalls
from escrowmq.model.errors import OutcomeUnknown, RequestRefused, Unavailable
from escrowmq.model.sink_attempt import AGE_MS_MAX, HOME_MARK, HeldAs, SinkRun
from escrowmq.pipeline.sink.written import SinkBatch, Written
from escrowmq.protocol.native.frames import NativeReply
from escrowmq.protocol.native.headers import (
    ByHeader,
    HoldHeader,
    ListTransactionsHeader,
    NativeHeader,
)
from escrowmq.protocol.native.requests import NATIVE_REQUESTS, NativeCode
from escrowmq.protocol.native.row_forms import NativeRow
from escrowmq.protocol.native.rows import (
    AttemptRow,
    DecisionRow,
    FoundAttemptRow,
    SoughtAttemptRow,
    TopicRow,
)
from escrowmq.protocol.native.sink_headers import DecideBatchHeader, FindAttemptsHeader

FIRST_WAIT_S = 0.05
WAIT_MAX_S = 2.0

T = TypeVar("T")
RowT = TypeVar("RowT", bound=NativeRow)


class SinkCalls:
    """A connection to a broker.

    Threads take turns, because a task asks for topics while its rows are being sent.
    """

    def __init__(self, address: str, timeout_ms: int) -> None:
        self.address = address
        self._turn = Lock()
        self._timeout_s = timeout_ms / 1_000
        self._calls = NativeCalls(address, answer_s=min(ANSWER_S, self._timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.close()

    def name(self) -> str:
        """The broker's own name."""
        return str(self._call(NativeCode.STATUS).header.broker)

    def topics(self) -> list[TopicRow]:
        """All topics."""
        return self._patiently(lambda: list(self._calls.rows(NativeCode.LIST_TOPICS)))

    def hold(self, held_as: HeldAs, number: int, batch: Any) -> int:  # noqa: ANN401 - an Arrow batch
        """Hold half messages durably, and return the half offset of the first."""
        header = HoldHeader(
            producer_group=held_as.producer_group,
            transaction_id=held_as.transaction_id,
            number=number,
            is_bulk=True,
            check_after_ms=AGE_MS_MAX,
        )
        answer = self._patiently(
            lambda: self._calls.call_arrow(NativeCode.HOLD_HALVES, header, batch)
        )
        return int(answer.header.half_offset)

    def decide(self, made: SinkBatch, written: Sequence[Written]) -> str:
        """Commit these attempts, all or none.

        Return ``decided``, or ``already_done`` if not committed.
        """
        attempts_max = NATIVE_REQUESTS[NativeCode.DECIDE_BATCH].rows_max
        held = [one for one in written if one.rows]
        if len(held) > attempts_max:
            raise RequestRefused(
                "too_many_partitions",
                f"coalesce the DataFrame to at most {attempts_max} partitions",
                partitions=len(held),
            )
        header = DecideBatchHeader(
            app_id=made.run.app_id,
            query_id=made.run.query_id,
            batch_number=made.number,
            batch_name=made.name,
            by=by(made.run),
            content=made.content,
            # Spark numbers all batches of a query without gaps, and empty batches are decided too.
            is_gapless=made.number is not None,
        )
        rows = [
            AttemptRow(
                transaction_id=one.attempt.transaction_id,
                last_number=one.last_number,
                messages=one.rows,
            )
            for one in held
        ]
        return str(self._call(NativeCode.DECIDE_BATCH, header, rows).header.outcome)

    def roll_back(self, written: Sequence[Written]) -> None:
        """Roll back the undecided ones of these attempts. Committed ones stay committed."""
        held = {one.head: one for one in written if one.rows}
        if not held:
            return
        listing = ListTransactionsHeader(start=min(held), end=max(held) + 1)
        # List the transactions first: a rollback of a committed one would raise an alert.
        listed = self._patiently(
            lambda: list(self._calls.rows(NativeCode.LIST_TRANSACTIONS, listing))
        )
        undecided = [held[row.half_offset] for row in listed if row.half_offset in held]
        self.decide_each(
            [decision(one.head, "rollback", one.attempt.run.producer_group) for one in undecided],
            by(written[0].attempt.run),
        )

    def decide_each(self, decisions: Sequence[DecisionRow], who: str) -> None:
        """Decide transactions one by one.

        Transactions that are already decided stay as they are.
        """
        for rows in full_requests(NativeCode.DECIDE_MANY, decisions):
            self._call(NativeCode.DECIDE_MANY, ByHeader(by=who), rows)

    # For writes to several brokers.

    def standing(self, producer_group: str) -> tuple[bool, frozenset[str], int]:
        """Whether a group is known, which other brokers decide for its app id, and the log end."""
        header = FindAttemptsHeader(producer_group=producer_group)
        told = self._call(NativeCode.FIND_ATTEMPTS, header).header
        return told.is_known, frozenset(told.homes.split(",")) - {""}, told.log_end

    def find(
        self, producer_group: str, sought: Sequence[SoughtAttemptRow]
    ) -> Iterable[FoundAttemptRow]:
        """The states of attempts of one group, in their order."""
        header = FindAttemptsHeader(producer_group=producer_group)
        for rows in full_requests(NativeCode.FIND_ATTEMPTS, sought):
            yield from self._call(NativeCode.FIND_ATTEMPTS, header, rows).rows

    def judge(self, made: SinkBatch, home: str = "") -> str:
        """The broker's judgment of this batch: new, done by this query, or another query's.

        Without `home`, for a broker that decides for this app id. With `home`, for the parts that
        it holds for that home.
        """
        header = FindAttemptsHeader(
            producer_group=f"{made.run.producer_group}{HOME_MARK}{home}"
            if home
            else made.run.producer_group,
            query_id=made.run.query_id,
            batch_number=made.number,
            batch_name=made.name,
            content=made.content,
        )
        return str(self._call(NativeCode.FIND_ATTEMPTS, header).header.judged)

    def _call(
        self, code: NativeCode, header: NativeHeader | None = None, rows: Sequence[NativeRow] = ()
    ) -> NativeReply:
        return self._patiently(lambda: self._calls.call(code, header, rows))

    def _patiently(self, ask: Callable[[], T]) -> T:
        until = time.monotonic() + self._timeout_s
        wait_s = FIRST_WAIT_S
        while True:
            try:
                with self._turn:
                    return ask()
            except (Unavailable, OutcomeUnknown):
                if time.monotonic() + wait_s >= until:
                    raise
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, WAIT_MAX_S)


def full_requests(code: NativeCode, rows: Sequence[RowT]) -> Iterable[Sequence[RowT]]:
    """Split rows into the most that one request of this kind takes."""
    rows_max = NATIVE_REQUESTS[code].rows_max
    return (rows[start : start + rows_max] for start in range(0, len(rows), rows_max))


def by(run: SinkRun) -> str:
    """The name of the decider, for the record."""
    return f"sink {run.app_id} {run.run}"


def decision(half_offset: int, resolution: str, producer_group: str) -> DecisionRow:
    """A decision about one transaction."""
    return DecisionRow(
        half_offset=half_offset,
        resolution=resolution,
        producer_group=producer_group,
        log_offset=None,
    )
