"""Looks up the outcome of transactions, ledger by ledger, from a task: Arrow rows to verdicts.

``look_up/inquiries.py`` asks the ledgers, and ``transaction/ledger_verdicts.py`` has the rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.client.ledger.checks import LATE, LedgerAnswer
from escrowmq.look_up.inquiries import InquiredRows, Inquiries
from escrowmq.look_up.ledgers import KnownLedgers
from escrowmq.model.lineage import Sight
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
from escrowmq.transaction.ledger_verdicts import verdict_of

#: How long one task waits for one ledger, over all its look-ups.
SECONDS_MAX = 20.0


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
        self._inquiries = Inquiries(ledgers, seconds_max=SECONDS_MAX)
        #: Each broker's history, taken before the facts were read.
        self._sights = sights or {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._inquiries.close()

    def settle(self, ledger_uuid: str, rows: pa.RecordBatch) -> LookedUp:
        """Look up rows of one ledger, fence absent overdue ones, and return verdicts."""
        verdicts: list[str | None] = []
        reasons: list[str | None] = []
        unknown: Counter[tuple[str, str]] = Counter()
        columns = (rows.column(name).to_pylist() for name in (BROKER, DUE_UNANSWERED, PARK_REASON))
        found = self._found(ledger_uuid, rows)
        for answer, broker, due, park_reason in zip(found, *columns, strict=True):
            kind, reason = verdict_of(*answer, due_unanswered=due, park_reason=park_reason)
            verdicts.append(None if kind is None else kind.value)
            reasons.append(reason if kind is VerdictKind.PARK else None)
            if kind is None:
                unknown[broker, reason] += 1
        return LookedUp(verdicts, reasons, unknown)

    def ended(self) -> list[dict[str, str]]:
        """How the look-ups in each ledger ended, for the report to the brokers."""
        return [
            {
                LEDGER: uuid,
                REASON: failure.reason if failure else "",
                CAUSE: failure.cause if failure else "",
            }
            for uuid, failure in self._inquiries.asked.items()
        ]

    def _found(self, ledger_uuid: str, rows: pa.RecordBatch) -> list[LedgerAnswer]:
        """The ledger's answer for each row. One request covers the rows of one broker only."""
        brokers, found = rows.column(BROKER), [LATE] * rows.num_rows
        for broker in brokers.unique().to_pylist():
            is_its = pc.equal(brokers, broker)
            its = _inquired(rows.filter(is_its))
            answers = self._inquiries.resolve(ledger_uuid, its, self._sights.get(broker))
            places = pc.indices_nonzero(is_its).to_pylist()
            for at, answer in zip(places, answers, strict=True):
                found[at] = answer
        return found


def _inquired(rows: pa.RecordBatch) -> InquiredRows:
    """The columns of a batch that a ledger is asked about."""
    return InquiredRows(
        transaction_ids=rows.column(TRANSACTION_ID).to_pylist(),
        producer_groups=rows.column(PRODUCER_GROUP).to_pylist(),
        half_offsets=rows.column(HALF_OFFSET).to_pylist(),
        stored_at_ms=rows.column(STORED_AT_MS).to_pylist(),
        allowed_ms=rows.column(ALLOWED_MS).to_pylist(),
        as_of_ms=rows.column(AS_OF_MS).to_pylist(),
    )
