"""The tasks of a settle round: look up, tell the brokers, report. They run on executors.

A task may run twice or die at any point. That is safe because verdicts name the version that they
were computed from, and the fences that a task writes into a ledger are the same from any task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.look_up.ledgers import KnownLedgers
from escrowmq.model.lineage import Sight
from escrowmq.pipeline.settle.look_ups import LookUps
from escrowmq.pipeline.settle.rows import (
    ASKS_DUE,
    ASKS_SENT,
    ATTEMPT,
    DUE,
    KIND,
    NO_LEDGER,
    NO_PRODUCER,
    PARK_REASON,
    SEEN,
    UNKNOWN,
    WAITING,
    WITHOUT_DUE,
    CountKey,
    ReportKind,
    Tallies,
    counts,
    passed,
    reports,
)
from escrowmq.pipeline.settle.verdicts import VerdictSender
from escrowmq.pipeline.views.facts import BROKER, LEDGER
from escrowmq.transaction.commands import VerdictKind
from escrowmq.transaction.rules import Due

#: What the rows of each due are counted as. A row without a due is an error.
_COUNTED = (
    (Due.WAIT.value, WAITING),
    (Due.NOTHING.value, WAITING),
    (Due.ASK.value, ASKS_DUE),
    (NO_PRODUCER, NO_PRODUCER),
    (None, WITHOUT_DUE),
)


@dataclass(frozen=True)
class SettleTask:
    """For ``mapInArrow``: decides and parks, and passes on rows that need a back-check.

    Made on the driver and pickled to the tasks, with the databases' URLs, which are never shown.
    """

    ledgers: KnownLedgers = field(repr=False)
    #: Each broker's history, taken before the facts were read.
    sights: Mapping[str, Sight] = field(default_factory=dict)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process one partition."""
        origin, numbers = uuid4().hex, count()
        tallies = Tallies()
        with (
            LookUps(self.ledgers, self.sights) as look_ups,
            VerdictSender(tallies, self.sights) as verdicts,
        ):
            for batch in batches:
                _count(tallies, batch, SEEN)
                for due, what in _COUNTED:
                    _count(tallies, where(batch, DUE, due), what)
                _count(tallies, batch.filter(batch.column(NO_LEDGER)), NO_LEDGER)
                for due, kind in ((Due.ASK.value, ReportKind.ASK), (ATTEMPT, ReportKind.ATTEMPT)):
                    rows = where(batch, DUE, due)
                    if rows.num_rows:
                        yield passed(rows, kind, origin=f"{origin} {next(numbers)}")
                verdicts.put_all(
                    where(batch, DUE, Due.PARK.value), VerdictKind.PARK, reason=PARK_REASON
                )
                self._look_up(where(batch, DUE, Due.LOOK_UP.value), look_ups, verdicts, tallies)
            verdicts.flush()
            yield reports(ReportKind.PARKED, verdicts.parked, origin=origin)
            yield reports(ReportKind.LEDGER, look_ups.ended(), origin=origin)
        yield counts(tallies, origin=origin)

    def _look_up(
        self, rows: pa.RecordBatch, look_ups: LookUps, verdicts: VerdictSender, tallies: Tallies
    ) -> None:
        for ledger in rows.column(LEDGER).unique().to_pylist():
            mine = where(rows, LEDGER, ledger)
            found = look_ups.settle(ledger, mine)
            verdicts.put(mine, found.verdicts, found.reasons)
            for broker, reason in found.unknown:
                tallies[CountKey(broker, UNKNOWN, reason)] += found.unknown[broker, reason]


@dataclass(frozen=True)
class TellTask:
    """For ``mapInArrow``: sends one verdict on all reports of a kind. The others pass through."""

    verdict: VerdictKind
    kind: ReportKind
    sights: Mapping[str, Sight] = field(default_factory=dict)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process one partition."""
        tallies = Tallies()
        with VerdictSender(tallies, self.sights) as verdicts:
            for batch in batches:
                mine = where(batch, KIND, self.kind.value)
                if self.verdict is VerdictKind.ASK:
                    _count(tallies, mine, ASKS_SENT)
                verdicts.put_all(mine, self.verdict)
                if mine.num_rows < batch.num_rows:
                    yield where(batch, KIND, self.kind.value, is_so=False)
            verdicts.flush()
        yield counts(tallies, origin=uuid4().hex)


def where(batch: pa.RecordBatch, name: str, value: str | None, *, is_so: bool = True) -> Any:  # noqa: ANN401 - as it comes
    """The rows of a batch or a table with this value, or with any other value."""
    held = batch.column(name)
    if value is None:
        return batch.filter(pc.is_null(held))
    return batch.filter(pc.equal(held, value) if is_so else pc.not_equal(held, value))


def _count(tallies: Tallies, rows: pa.RecordBatch, what: str) -> None:
    """Count rows by broker."""
    found: list[dict[str, Any]] = rows.column(BROKER).value_counts().to_pylist()
    for one in found:
        tallies[CountKey(one["values"], what)] += one["counts"]
