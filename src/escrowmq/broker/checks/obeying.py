"""Carries out verdicts in bulk: each is obeyed on its own, and all outcomes are told together.

Nearly all of them end transactions of one message. Those go through the writer as columns, one
slice at a time, so that other clients get their turn in between. The remaining verdicts go one by
one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from escrowmq.broker.checks.checking import Checking, outcome_of_error
from escrowmq.broker.net.answering import reply_of
from escrowmq.broker.state.counting import BrokerCounts
from escrowmq.broker.write.bulk import Bulk, Ends
from escrowmq.broker.write.writer import Writer
from escrowmq.model.message_columns import Numbers
from escrowmq.model.resolution import Resolution
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.message.limits import SHOWN_CHARS_MAX
from escrowmq.transaction.commands import (
    Decision,
    Ended,
    Obeyed,
    Verdict,
    VerdictKind,
    Verdicts,
)
from escrowmq.transaction.states import STATES

BY_BROKER = "broker"
"""Recorded as the decider of what the broker's own rounds decide."""
SLICE_ROWS = 2_048
"""Verdicts that are decided in one step: about 1 ms."""
SLICE_ROWS_BESIDE = 64
"""The same while clients send messages, because each step delays the batch that it joins."""

KINDS = tuple(VerdictKind)
OUTCOMES = tuple(VerdictOutcome)
CODES = {outcome: code for code, outcome in enumerate(OUTCOMES)}
_COMMIT, _ROLLBACK = KINDS.index(VerdictKind.COMMIT), KINDS.index(VerdictKind.ROLLBACK)
ASK, PARK = KINDS.index(VerdictKind.ASK), KINDS.index(VerdictKind.PARK)
#: Outcomes by the code of ``Ended``; the outcome of a verdict that was left is not known yet.
_OF_ENDED = np.array(
    [
        CODES[VerdictOutcome.UNKNOWN if end is Ended.LEFT else VerdictOutcome(end.name.lower())]
        for end in Ended
    ],
    dtype=np.uint8,
)


@dataclass(frozen=True, slots=True, eq=False)
class VerdictColumns:
    """Verdicts on transactions, one per row."""

    half_offsets: Numbers
    #: Index in ``KINDS``.
    kinds: Numbers
    #: The versions that the verdicts were computed from: state and checks sent.
    states: Numbers
    checks_sent: Numbers
    #: Why a transaction is parked; may be empty if none is.
    reasons: Sequence[str | None]
    #: Recorded as the decider.
    by: str

    def taken(self, rows: Numbers) -> VerdictColumns:
        """Return some of the rows."""
        return VerdictColumns(
            half_offsets=self.half_offsets[rows],
            kinds=self.kinds[rows],
            states=self.states[rows],
            checks_sent=self.checks_sent[rows],
            reasons=[self.reasons[at] for at in rows.tolist()] if self.reasons else [],
            by=self.by,
        )

    def verdict(self, at: int) -> Verdict:
        """Return one row as a command."""
        return Verdict(
            half_offset=int(self.half_offsets[at]),
            kind=KINDS[self.kinds[at]],
            state=STATES[self.states[at]],
            checks_sent=int(self.checks_sent[at]),
            by=self.by,
            reason=((self.reasons[at] if self.reasons else None) or "")[:SHOWN_CHARS_MAX],
        )


ToldOutcomes = Callable[[Numbers], None]
"""Called with an index in ``OUTCOMES`` for each row."""


@dataclass(frozen=True, slots=True)
class VerdictExecutor:
    """Carries out verdicts of pipelines and of the broker itself, and counts their outcomes."""

    writer: Writer
    checking: Checking
    counts: BrokerCounts

    def obey(self, verdicts: VerdictColumns, told: ToldOutcomes) -> None:
        """Carry out each verdict, and tell the outcomes once they are durable."""

        def done(outcomes: Numbers) -> None:
            self.counts.verdicts.update(counted(outcomes))
            told(outcomes)

        _Execution(self, verdicts, done).start()

    async def obeyed(self, verdicts: VerdictColumns) -> Numbers:
        """Carry out each verdict, and return the outcomes once they are durable."""
        told: asyncio.Future[Numbers] = asyncio.get_running_loop().create_future()

        def tell(outcomes: Numbers) -> None:
            if not told.done():
                told.set_result(outcomes)

        self.obey(verdicts, tell)
        return await told


class _Execution:
    """Verdicts that are being carried out."""

    def __init__(
        self, parts: VerdictExecutor, verdicts: VerdictColumns, told: ToldOutcomes
    ) -> None:
        self._parts = parts
        self._verdicts = verdicts
        self._told = told
        is_ending = (verdicts.kinds == _COMMIT) | (verdicts.kinds == _ROLLBACK)
        endings = np.flatnonzero(is_ending)
        size = min(SLICE_ROWS, SLICE_ROWS_BESIDE) if parts.writer.pace.is_in_use else SLICE_ROWS
        self._slices = [endings[at : at + size] for at in range(0, len(endings), size)]
        self._others = np.flatnonzero(~is_ending)
        self._outcomes = np.zeros(len(verdicts.half_offsets), dtype=np.uint8)

    def start(self) -> None:
        """Start with the verdicts that can be decided together."""
        verdicts = self._verdicts
        commands = [
            Verdicts(
                half_offsets=verdicts.half_offsets[part],
                commits=verdicts.kinds[part] == _COMMIT,
                states=verdicts.states[part],
                checks_sent=verdicts.checks_sent[part],
                by=verdicts.by,
            )
            for part in self._slices
        ]
        Bulk(self._parts.writer, commands, self._ended, slice_max=1).start()

    def _ended(self, ends: Ends) -> None:
        verdicts, left = self._verdicts, [self._others]
        for part, end in zip(self._slices, ends, strict=True):
            if not isinstance(end, Decision):
                self._outcomes[part] = CODES[outcome_of_error(end)]
                continue
            reply = reply_of(end, Obeyed)
            codes = np.frombuffer(reply.ends, dtype=np.uint8)
            self._outcomes[part] = _OF_ENDED[codes]
            left.append(part[codes == Ended.LEFT])
            for at in part[reply.contradicted].tolist():
                said = Resolution(KINDS[verdicts.kinds[at]].value)
                self._parts.checking.note_stale(int(verdicts.half_offsets[at]), said, verdicts.by)
        self._obey_each(np.sort(np.concatenate(left)))

    def _obey_each(self, places: Numbers) -> None:
        if not len(places):
            self._told(self._outcomes)
            return

        def told(outcomes: list[VerdictOutcome]) -> None:
            self._outcomes[places] = [CODES[outcome] for outcome in outcomes]
            self._told(self._outcomes)

        commands = [self._verdicts.verdict(at) for at in places.tolist()]
        self._parts.checking.obey(commands, told)


def verdicts_on(heads: Numbers, kinds: Numbers, reasons: list[str]) -> VerdictColumns:
    """Return the broker's own verdicts on these heads, for the version that was read.

    ``kinds`` has an index in ``KINDS`` for each head.
    """
    return VerdictColumns(
        half_offsets=heads["half_offset"],
        kinds=kinds,
        states=heads["state"],
        checks_sent=heads["checks_sent"],
        reasons=reasons,
        by=BY_BROKER,
    )


def counted(outcomes: Numbers) -> Counter[str]:
    """Count the outcomes of verdicts by name."""
    codes, counts = np.unique(outcomes, return_counts=True)
    pairs = zip(codes.tolist(), counts.tolist(), strict=True)
    return Counter({OUTCOMES[code].value: count for code, count in pairs})
