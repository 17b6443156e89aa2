"""Looks up the outcome of transactions, ledger by ledger, from a task.

A ledger that fails is not asked again by the same task, nor for `REST_S` by the same process. The
other ledgers then wait for it once, not at every batch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Self

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.client.database.connections import DatabaseConnection
from escrowmq.client.database.databases import Opener, opener_of
from escrowmq.client.ledger.checks import (
    LATE,
    Answers,
    Inquiry,
    LedgerAnswer,
    LedgerOutcome,
    deadline_at_ms,
)
from escrowmq.client.ledger.marks import MAYBE_SWEPT
from escrowmq.model.lineage import Sight
from escrowmq.pipeline.ledger_config import scrubbed
from escrowmq.pipeline.settle.ledgers import KnownLedgers
from escrowmq.pipeline.settle.rows import CAUSE, DUE_UNANSWERED, PARK_REASON, REASON
from escrowmq.pipeline.views.facts import (
    ALLOWED_MS,
    AS_OF_MS,
    BROKER,
    HALF_OFFSET,
    LEDGER,
    PRODUCER_GROUP,
    STORED_AT_MS,
    TRANSACTION_ID,
)
from escrowmq.transaction.commands import VerdictKind
from escrowmq.transaction.rules import Due

#: How long one task waits for one ledger, over all its look-ups.
SECONDS_MAX = 20.0
#: How long a process does not ask a ledger after it failed.
REST_S = 10.0

_VERDICTS = {
    LedgerOutcome.COMMITTED: VerdictKind.COMMIT.value,
    LedgerOutcome.ROLLED_BACK: VerdictKind.ROLLBACK.value,
}

#: By URL: when the ledger may be asked again, its failed answer, and the error text. Spark's Python
#: workers run one task after the other.
_resting: dict[str, tuple[float, LedgerAnswer, str]] = {}


@dataclass(frozen=True)
class LookedUp:
    """The verdict for each row, in the order of the rows."""

    #: Null means no verdict, because the outcome is unknown.
    verdicts: list[str | None]
    #: Why a row is parked; null for the others.
    reasons: list[str | None]
    #: How many outcomes are unknown and get no verdict, by broker and reason.
    unknown: Mapping[tuple[str, str], int]


class LookUps:
    """One task's connections to ledgers."""

    def __init__(self, ledgers: KnownLedgers, sights: Mapping[str, Sight] | None = None) -> None:
        self._ledgers = ledgers
        #: Each broker's history, taken before the facts were read.
        self._sights = sights or {}
        self._inquiries: dict[str, Inquiry] = {}
        #: Why a ledger was not asked, or not completely, by UUID: a code and the error text.
        self._failed: dict[str, tuple[str, str]] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def settle(self, ledger_uuid: str, rows: pa.RecordBatch) -> LookedUp:
        """Look up rows of one ledger, fence absent overdue ones, and return verdicts."""
        found = self._found(ledger_uuid, rows)
        verdicts: list[str | None] = [_VERDICTS.get(answer.outcome) for answer in found]
        reasons: list[str | None] = [None] * len(found)
        unknown: Counter[tuple[str, str]] = Counter()
        lost = [at for at, verdict in enumerate(verdicts) if verdict is None]
        if lost:
            some = rows.take(lost)
            brokers = some.column(BROKER).to_pylist()
            dues = some.column(DUE_UNANSWERED).to_pylist()
            why = some.column(PARK_REASON).to_pylist()
            for at, broker, due, reason in zip(lost, brokers, dues, why, strict=True):
                if found[at].reason == MAYBE_SWEPT:
                    verdicts[at], reasons[at] = VerdictKind.PARK.value, MAYBE_SWEPT
                elif due == Due.PARK.value:
                    verdicts[at], reasons[at] = VerdictKind.PARK.value, reason
                else:
                    unknown[broker, found[at].reason] += 1
        return LookedUp(verdicts, reasons, unknown)

    def ended(self) -> list[dict[str, str]]:
        """How the look-ups in each ledger ended, for the report to the brokers."""
        asked = {*self._inquiries, *self._failed}
        return [
            {LEDGER: uuid, REASON: reason, CAUSE: scrubbed(cause, self._ledgers.urls[uuid])}
            for uuid in sorted(asked)
            for reason, cause in [self._failed.get(uuid, ("", ""))]
        ]

    def _found(self, ledger_uuid: str, rows: pa.RecordBatch) -> list[LedgerAnswer]:
        """The ledger's answer for each row. One inquiry covers the rows of one broker only."""
        brokers, found = rows.column(BROKER), [LATE] * rows.num_rows
        for broker in brokers.unique().to_pylist():
            is_its = pc.equal(brokers, broker)
            its = rows.filter(is_its)
            ids = its.column(TRANSACTION_ID).to_pylist()
            answers = self._answers(ledger_uuid, ids, its, self._sights.get(broker))
            places = pc.indices_nonzero(is_its).to_pylist()
            for at, key in zip(places, ids, strict=True):
                found[at] = answers[key]
        return found

    def _answers(
        self, ledger_uuid: str, ids: list[str], rows: pa.RecordBatch, sight: Sight | None
    ) -> Answers:
        fault = self._ledgers.fault_of(ledger_uuid)
        if fault is not None:
            return dict.fromkeys(ids, LedgerAnswer(LedgerOutcome.UNKNOWN, fault))
        url = self._ledgers.urls[ledger_uuid]
        until_s, failed, cause = _resting.get(url, (0.0, None, ""))
        if failed is not None and time.monotonic() < until_s:
            self._failed[ledger_uuid] = failed.reason, cause
            return dict.fromkeys(ids, failed)
        inquiry = self._inquiry(ledger_uuid, url)
        as_of = rows.column(AS_OF_MS).to_numpy()
        deadlines = deadline_at_ms(
            rows.column(STORED_AT_MS).to_numpy(), rows.column(ALLOWED_MS).to_numpy()
        )
        on_time = (deadlines >= as_of).nonzero()[0].tolist()
        overdue = set(ids) - {ids[at] for at in on_time}
        groups = rows.column(PRODUCER_GROUP).to_pylist()
        half_offsets = rows.column(HALF_OFFSET).to_pylist()
        answers = inquiry.resolve(ids, groups, overdue, sight, half_offsets)
        if inquiry.failed is not None:
            self._failed[ledger_uuid] = inquiry.failed.reason, inquiry.cause
            _resting[url] = time.monotonic() + REST_S, inquiry.failed, inquiry.cause
        return answers

    def _inquiry(self, ledger_uuid: str, url: str) -> Inquiry:
        inquiry = self._inquiries.get(ledger_uuid)
        if inquiry is None:
            opener = self._open.enter_context(_kept(url))
            inquiry = Inquiry(opener, ledger_uuid, seconds_max=SECONDS_MAX)
            self._inquiries[ledger_uuid] = inquiry
        return inquiry


@contextmanager
def _kept(url: str) -> Iterator[Opener]:
    """Yield an opener that reuses one connection, opened on first use.

    The database driver is imported on first use too. If it is not installed here, this ledger fails
    and the task does not.
    """
    with ExitStack() as opened:
        connections: list[DatabaseConnection] = []

        @contextmanager
        def again() -> Iterator[DatabaseConnection]:
            if not connections:
                connections.append(opened.enter_context(opener_of(url)()))
            yield connections[0]

        yield again
