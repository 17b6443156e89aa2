"""The time rules as a loop: what the pipeline does on Spark, for tests and for users' tests.

It needs no engine of its own, only a port: the facts of what is undecided, and a way to submit
commands.  Producers and ledgers are functions, so that a test says in one line who answers what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from escrowmq.transaction.commands import CheckSent, Command, Decision, End, Verdict, VerdictKind
from escrowmq.transaction.rules import DUES_UNANSWERED, Due, HalfFacts, due
from escrowmq.transaction.states import Resolution, State

if TYPE_CHECKING:
    from escrowmq.transaction.policy import CheckPolicy


class Undecided(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a transaction that may be checked; times are the broker's."""

    #: The transaction's first half message.
    half_offset: int
    transaction_id: str
    group: str
    #: The UUID of the ledger table that knows the outcome; empty if there is none.
    ledger: str
    allowed_ms: int
    state: State
    #: Since it was stored, or resumed.
    age_ms: int
    #: Until its next check; 0 and below when that is due.
    wait_ms: int
    checks_sent: int

    def facts(self) -> HalfFacts:
        """The part that the rules need."""
        return HalfFacts(
            state=self.state,
            age_ms=self.age_ms,
            wait_ms=self.wait_ms,
            checks_sent=self.checks_sent,
            has_ledger=int(bool(self.ledger)),
        )


class SettlePort(Protocol):
    """What the settler asks of an engine, or of a broker."""

    def undecided(self) -> Sequence[Undecided]:
        """Every transaction that may be checked."""
        ...

    def submit(self, command: Command) -> Decision:
        """Do it; a refusal is in the decision."""
        ...


Ask = Callable[[Undecided], Resolution | None]
"""A producer: what it answers to a back-check.  None: no producer of the group is online."""

LookUp = Callable[[Undecided], Resolution | None]
"""A ledger table: the outcome it has.  None and UNKNOWN: it has none, or cannot be read."""


class Round(msgspec.Struct, kw_only=True):
    """What one round did; half offsets."""

    waiting: list[int] = msgspec.field(default_factory=list)
    asked: list[int] = msgspec.field(default_factory=list)
    #: Due for a check, but no producer is online.  Not an attempt.
    unreachable: list[int] = msgspec.field(default_factory=list)
    committed: list[int] = msgspec.field(default_factory=list)
    rolled_back: list[int] = msgspec.field(default_factory=list)
    parked: list[int] = msgspec.field(default_factory=list)


class Settler:
    """Looks at everything undecided, once per ``run_once``."""

    def __init__(
        self,
        port: SettlePort,
        policy: CheckPolicy,
        ask: Ask,
        look_up: LookUp | None = None,
        *,
        client: str = "producer",
    ) -> None:
        self._port = port
        self._policy = policy
        self._ask = ask
        self._look_up = look_up
        self._client = client

    def run_once(self) -> Round:
        """Do for each undecided transaction what the rules say now."""
        done = Round()
        for half in self._port.undecided():
            what = due(half.facts(), self._policy)
            if what is Due.WAIT:
                done.waiting.append(half.half_offset)
            elif what is Due.ASK:
                self._back_check(half, done)
            elif what is Due.PARK:
                self._park(half, done)
            else:
                assert what is Due.LOOK_UP, what
                self._look_into_ledger(half, done)
        return done

    def _back_check(self, half: Undecided, done: Round) -> None:
        for head in self._obey(half, VerdictKind.ASK).back_checks:
            answer = self._ask(half)
            if answer is None:
                done.unreachable.append(head)
                continue
            self._port.submit(CheckSent(half_offset=head, client=self._client))
            done.asked.append(head)
            ending = End(half_offset=head, resolution=answer, by=self._client, from_check=True)
            if self._port.submit(ending).refused is None:
                self._note(half, answer, done)

    def _park(self, half: Undecided, done: Round) -> None:
        is_exhausted = half.checks_sent >= self._policy.checks_max
        reason = "exhausted" if is_exhausted else "past_retention"
        if self._obey(half, VerdictKind.PARK, reason).records:
            done.parked.append(half.half_offset)

    def _look_into_ledger(self, half: Undecided, done: Round) -> None:
        outcome = None if self._look_up is None else self._look_up(half)
        if outcome is None or outcome is Resolution.UNKNOWN:
            if due(half.facts(), self._policy, DUES_UNANSWERED) is Due.PARK:
                self._park(half, done)
            else:
                done.waiting.append(half.half_offset)
        elif self._obey(half, VerdictKind(outcome.value)).records:
            self._note(half, outcome, done)

    def _obey(self, half: Undecided, kind: VerdictKind, reason: str = "") -> Decision:
        verdict = Verdict(
            half_offset=half.half_offset,
            kind=kind,
            state=half.state,
            checks_sent=half.checks_sent,
            reason=reason,
        )
        return self._port.submit(verdict)

    @staticmethod
    def _note(half: Undecided, answer: Resolution, done: Round) -> None:
        if answer is Resolution.COMMIT:
            done.committed.append(half.half_offset)
        elif answer is Resolution.ROLLBACK:
            done.rolled_back.append(half.half_offset)
