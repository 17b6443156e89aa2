"""The pipeline's time rules as a loop without Spark, for our tests and users' tests.

The settler needs only a port, which returns facts about undecided transactions and obeys verdicts.
The port is a broker, which asks its producers itself, or an ``AnsweringEngine`` around an engine in
this process. In the second case producers and ledgers are functions, so a test defines their
answers in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from escrowmq.model.resolution import Resolution
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.transaction.commands import CheckSent, Command, Decision, End, Verdict, VerdictKind
from escrowmq.transaction.decisions.checking import outcome_of
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.rules import (
    DUES_UNANSWERED,
    PARK_REASONS,
    Due,
    HalfFacts,
    due,
    label,
)
from escrowmq.transaction.states import State


class CheckableTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a transaction that may be checked, in the broker's store time."""

    #: Offset of the transaction's first half message.
    half_offset: int
    transaction_id: str
    group: str
    #: The UUID of the ledger table that knows the outcome; empty if there is none.
    ledger: str
    allowed_ms: int
    state: State
    #: Time since it was stored or, if later, resumed.
    age_ms: int
    #: Time until its next check; 0 or negative if it is due.
    wait_ms: int
    checks_sent: int

    def facts(self) -> HalfFacts:
        """Return the facts that the rules need."""
        return HalfFacts(
            state=self.state,
            age_ms=self.age_ms,
            wait_ms=self.wait_ms,
            checks_sent=self.checks_sent,
            has_ledger=int(bool(self.ledger)),
        )


class SettlePort(Protocol):
    """The settler's interface to a broker."""

    def undecided(self) -> Sequence[CheckableTransaction]:
        """Return all transactions that may be checked."""

    def obey(self, verdicts: Sequence[Verdict]) -> Sequence[VerdictOutcome]:
        """Execute the verdicts; return their outcomes in the same order."""


LookUp = Callable[[CheckableTransaction], Resolution | str | None]
"""Look up a transaction in a ledger table and return its outcome. None and UNKNOWN mean that there
is no outcome or that the table cannot be read. A text is the reason to park the transaction now."""


class Round(msgspec.Struct, kw_only=True):
    """Result of one round: half offsets, by outcome; ``waiting`` ones got no verdict."""

    waiting: list[int] = msgspec.field(default_factory=list)
    committed: list[int] = msgspec.field(default_factory=list)
    rolled_back: list[int] = msgspec.field(default_factory=list)
    parked: list[int] = msgspec.field(default_factory=list)
    #: A later round shows what their producers answered.
    asked: list[int] = msgspec.field(default_factory=list)
    #: Due for a check, but no producer is online. Does not count as a check.
    no_producer: list[int] = msgspec.field(default_factory=list)
    busy: list[int] = msgspec.field(default_factory=list)
    stale: list[int] = msgspec.field(default_factory=list)
    refused: list[int] = msgspec.field(default_factory=list)
    unknown: list[int] = msgspec.field(default_factory=list)

    def note(self, half_offset: int, outcome: VerdictOutcome) -> None:
        """Record the outcome of a verdict."""
        getattr(self, outcome.value).append(half_offset)


class Settler:
    """Applies the time rules to all undecided transactions, once per ``run_once``."""

    def __init__(
        self, port: SettlePort, policy: CheckPolicy, look_up: LookUp | None = None
    ) -> None:
        self._port = port
        self._policy = policy
        self._look_up = look_up

    def run_once(self) -> Round:
        """Run one round: send a verdict for each undecided transaction that needs one now."""
        done = Round()
        verdicts = []
        for half in self._port.undecided():
            verdict = self._verdict(half)
            if verdict is None:
                done.waiting.append(half.half_offset)
            else:
                verdicts.append(verdict)
        for verdict, outcome in zip(verdicts, self._port.obey(verdicts), strict=True):
            done.note(verdict.half_offset, outcome)
        return done

    def _verdict(self, half: CheckableTransaction) -> Verdict | None:
        """Return the verdict on a transaction, or None if it must wait."""
        what = due(self._facts(half), self._policy)
        if what is Due.WAIT:
            return None
        if what is Due.ASK:
            return _verdict(half, VerdictKind.ASK)
        if what is Due.PARK:
            return self._park(half)
        assert what is Due.LOOK_UP, what
        outcome = None if self._look_up is None else self._look_up(half)
        if outcome is not None and not isinstance(outcome, Resolution):
            return _verdict(half, VerdictKind.PARK, outcome)
        if outcome is not None and outcome is not Resolution.UNKNOWN:
            return _verdict(half, VerdictKind(outcome.value))
        is_over = due(half.facts(), self._policy, DUES_UNANSWERED) is Due.PARK
        return self._park(half) if is_over else None

    def _facts(self, half: CheckableTransaction) -> HalfFacts:
        # Without a look-up, the half message counts as one without a ledger. The policy then
        # asks the producers, which can read their own ledgers.
        facts = half.facts()
        return facts if self._look_up is not None else replace(facts, has_ledger=0)

    def _park(self, half: CheckableTransaction) -> Verdict:
        reason = label(half.facts(), self._policy, PARK_REASONS)
        return _verdict(half, VerdictKind.PARK, reason.value)


def _verdict(half: CheckableTransaction, kind: VerdictKind, reason: str = "") -> Verdict:
    return Verdict(
        half_offset=half.half_offset,
        kind=kind,
        state=half.state,
        checks_sent=half.checks_sent,
        reason=reason,
    )


class SettledEngine(Protocol):
    """Interface that ``AnsweringEngine`` needs; ``Engine`` and ``MemoryEngine`` implement it."""

    def undecided(self) -> Sequence[CheckableTransaction]:
        """Return all transactions that may be checked."""

    def submit(self, command: Command) -> Decision:
        """Execute the command. A refusal is in the decision."""


Ask = Callable[[CheckableTransaction], Resolution | None]
"""Answer a back-check as a producer. None means that no producer of the group is online."""


class AnsweringEngine:
    """An engine whose producers are a function. It obeys verdicts as a broker does."""

    def __init__(self, engine: SettledEngine, ask: Ask, *, client: str = "producer") -> None:
        self._engine = engine
        self._ask = ask
        self._client = client
        self._facts: dict[int, CheckableTransaction] = {}

    def undecided(self) -> Sequence[CheckableTransaction]:
        """Return all transactions that may be checked."""
        found = self._engine.undecided()
        self._facts = {half.half_offset: half for half in found}
        return found

    def obey(self, verdicts: Sequence[Verdict]) -> Sequence[VerdictOutcome]:
        """Execute the verdicts, and submit the producers' answers."""
        return [self._obey(verdict) for verdict in verdicts]

    def _obey(self, verdict: Verdict) -> VerdictOutcome:
        outcome = outcome_of(self._engine.submit(verdict))
        if outcome is not VerdictOutcome.ASKED:
            return outcome
        head = verdict.half_offset
        answer = self._ask(self._facts[head])
        if answer is None:
            return VerdictOutcome.NO_PRODUCER
        self._engine.submit(CheckSent(half_offset=head, client=self._client))
        self._engine.submit(
            End(half_offset=head, resolution=answer, by=self._client, from_check=True)
        )
        return outcome
