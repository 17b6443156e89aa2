"""Looks up what became of transactions, ledger by ledger, from a task.

One ledger that fails is not asked again by the same task, nor for a while by the same process, so
that the others wait for it once and not at every batch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from escrowmq.client.databases import Opener, opener_of
from escrowmq.client.ledger_checks import Answer, Answers, Inquiry, Outcome, deadline_at_ms
from escrowmq.client.links import Link
from escrowmq.pipeline.settle.ledgers import KnownLedgers
from escrowmq.pipeline.settle.rows import DUE_UNANSWERED, PARK_REASON
from escrowmq.pipeline.views.facts import (
    ALLOWED_MS,
    AS_OF_MS,
    BROKER,
    PRODUCER_GROUP,
    STORED_AT_MS,
    TRANSACTION_ID,
)
from escrowmq.transaction.commands import VerdictKind
from escrowmq.transaction.rules import Due

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

#: How long one task waits for one ledger, all its look-ups together.
SECONDS_MAX = 20.0
#: How long a process does not ask a ledger that failed.
REST_S = 10.0

_VERDICTS = {
    Outcome.COMMITTED: VerdictKind.COMMIT.value,
    Outcome.ROLLED_BACK: VerdictKind.ROLLBACK.value,
}

#: By URL when a ledger may be asked again, and what it failed with.  Spark's Python workers run one
#: task after the other.
_resting: dict[str, tuple[float, Answer]] = {}


@dataclass(frozen=True)
class LookedUp:
    """What is to be done about each row, in their order."""

    #: Null: nothing, because the outcome is not known.
    verdicts: list[str | None]
    #: Of those that are parked.
    reasons: list[str | None]
    #: By broker and reason, how often the outcome is not known and nothing is done.
    unknown: Mapping[tuple[str, str], int]


class LookUps:
    """One task's connections to ledgers."""

    def __init__(self, ledgers: KnownLedgers) -> None:
        self._ledgers = ledgers
        self._inquiries: dict[str, Inquiry] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def settle(self, ledger_uuid: str, rows: pa.RecordBatch) -> LookedUp:
        """Look up rows of one ledger, fence what is absent past its deadline, and judge."""
        ids = rows.column(TRANSACTION_ID).to_pylist()
        groups = rows.column(PRODUCER_GROUP).to_pylist()
        answers = self._answers(ledger_uuid, ids, groups, rows)
        found = [answers[key] for key in ids]
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
                if due == Due.PARK.value:
                    verdicts[at], reasons[at] = VerdictKind.PARK.value, reason
                else:
                    unknown[broker, found[at].reason] += 1
        return LookedUp(verdicts, reasons, unknown)

    def _answers(
        self, ledger_uuid: str, ids: list[str], groups: list[str], rows: pa.RecordBatch
    ) -> Answers:
        silent = self._ledgers.silent.get(ledger_uuid)
        if silent is not None:
            return dict.fromkeys(ids, Answer(Outcome.UNKNOWN, silent))
        url = self._ledgers.urls[ledger_uuid]
        until_s, failed = _resting.get(url, (0.0, None))
        if failed is not None and time.monotonic() < until_s:
            return dict.fromkeys(ids, failed)
        inquiry = self._inquiry(ledger_uuid, url)
        as_of = rows.column(AS_OF_MS).to_numpy()
        deadlines = deadline_at_ms(
            rows.column(STORED_AT_MS).to_numpy(), rows.column(ALLOWED_MS).to_numpy()
        )
        on_time = (deadlines >= as_of).nonzero()[0].tolist()
        overdue = set(ids) - {ids[at] for at in on_time}
        answers = inquiry.settle(ids, groups, overdue, now_ms=int(as_of.min()))
        if inquiry.failed is not None:
            _resting[url] = time.monotonic() + REST_S, inquiry.failed
        return answers

    def _inquiry(self, ledger_uuid: str, url: str) -> Inquiry:
        inquiry = self._inquiries.get(ledger_uuid)
        if inquiry is None:
            opener = self._open.enter_context(_kept(opener_of(url)))
            inquiry = Inquiry(opener, ledger_uuid, seconds_max=SECONDS_MAX)
            self._inquiries[ledger_uuid] = inquiry
        return inquiry


@contextmanager
def _kept(opener: Opener) -> Iterator[Opener]:
    """Give one connection again and again; it is opened when it is first needed."""
    with ExitStack() as opened:
        links: list[Link] = []

        @contextmanager
        def again() -> Iterator[Link]:
            if not links:
                links.append(opened.enter_context(opener()))
            yield links[0]

        yield again
