"""The oracle of the hunt: derives what must hold from what a program did.

The database is never restored, so its rows are the truth. The model knows which transactions the
broker's history holds: a restore brings back the list from the time of the backup.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class Wrong(AssertionError):
    """Rows, ledger and messages disagree."""


@dataclass(eq=False)
class Attempt:
    """One block: what it wrote and sent, and its outcome in the database."""

    transaction_id: str = ""
    #: Every order that it tried to place.
    placed: set[int] = field(default_factory=set)
    #: The orders that no savepoint rolled back.
    kept: set[int] = field(default_factory=set)
    #: The kept orders that have a message.
    told: set[int] = field(default_factory=set)
    #: The message that it consumes.
    consumes: str = ""
    is_committed: bool = False
    #: The user committed by hand, and the block refused it: its rows have no messages.
    is_broken_by_user: bool = False
    #: A sweep in another history may have deleted its row.
    may_be_swept: bool = False

    @property
    def may_have_committed(self) -> bool:
        """Whether its rows are there, through our block or the user's own commit."""
        return self.is_committed or self.is_broken_by_user


class Snapshot(NamedTuple):
    """The content of a backup."""

    path: str
    history: tuple[Attempt, ...]
    sweeps: int


class Found(NamedTuple):
    """The state at the end of a program."""

    orders: set[int]
    #: Bodies of visible messages.
    messages: list[int]
    #: Transaction ids.
    parked: set[str]
    undecided: set[str]
    #: Transaction id -> outcome.
    ledger: dict[str, str]
    #: Message ids; an unfinished one is a sign of half a block.
    consumed: set[str]
    unfinished: set[str]


class Model:
    """Records what a program did."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        #: The transactions that the broker holds in its present history.
        self.history: list[Attempt] = []
        #: The transactions that it held in a history that it left.
        self.abandoned: set[Attempt] = set()
        self.sweeps = 0
        self._numbers = 0

    def next_number(self) -> int:
        """Return a unique order number."""
        self._numbers += 1
        return self._numbers

    def snapshot(self, path: str) -> Snapshot:
        """Record a backup."""
        return Snapshot(path, tuple(self.history), self.sweeps)

    def restore(self, snapshot: Snapshot) -> None:
        """Record that the broker continues from this backup."""
        self.abandoned |= set(self.history) - set(snapshot.history)
        self.history = list(snapshot.history)
        if self.sweeps > snapshot.sweeps:
            for attempt in self.history:
                attempt.may_be_swept = True

    def ended(
        self, attempt: Attempt, orders: set[int], consumed: set[str], *, expects: bool | None
    ) -> None:
        """Record the end of a block; ``expects`` is None if only the database knows the outcome."""
        there = orders & attempt.placed
        whole = attempt.kept
        if attempt.is_broken_by_user:
            return
        if expects is None:
            if there not in (whole, set()):
                raise Wrong(f"a part of a transaction is there: {there} of {whole}")
            attempt.is_committed = bool(there) if whole else attempt.consumes in consumed
        elif there != (whole if expects else set()):
            raise Wrong(f"the orders {there} are there, of {whole}; is_committed={expects}")
        else:
            attempt.is_committed = expects

    def told(self) -> set[int]:
        """Return the committed orders that must have a message."""
        return {number for one in self.attempts if one.is_committed for number in one.told}

    def lost(self) -> set[Attempt]:
        """Return committed attempts whose messages only an abandoned history has."""
        left = self.abandoned - set(self.history)
        return {one for one in left if one.is_committed and one.told}

    def consumed_ids(self) -> set[str]:
        """Return the messages whose effect is in the database."""
        return {one.consumes for one in self.attempts if one.consumes and one.is_committed}

    def judge(self, found: Found) -> None:
        """Raise unless orders, ledger and messages agree."""
        self._judge_messages(found)
        self._judge_ledger(found)
        if found.undecided:
            raise Wrong(f"undecided after checks: {found.undecided}")
        self._judge_consumed(found)

    def _judge_messages(self, found: Found) -> None:
        doubled = [number for number, times in Counter(found.messages).items() if times > 1]
        if doubled:
            raise Wrong(f"messages came twice: {doubled}")
        rows = {n for one in self.attempts if not one.is_broken_by_user for n in one.placed}
        expected_rows = {n for one in self.attempts if one.is_committed for n in one.kept}
        if found.orders & rows != expected_rows:
            raise Wrong(f"orders {found.orders & rows}, not {expected_rows}")
        parked = {one for one in self.attempts if one.transaction_id in found.parked}
        if len(parked) != len(found.parked):
            raise Wrong(f"parked, and no program sent it: {found.parked}")
        due = {one for one in self.history if one.is_committed} - parked
        expected = {number for one in due for number in one.told}
        if set(found.messages) != expected:
            raise Wrong(
                f"without its order: {set(found.messages) - expected};"
                f" without its message: {expected - set(found.messages)}"
            )
        self._judge_parked(parked, found)

    def _judge_parked(self, parked: set[Attempt], found: Found) -> None:
        for one in parked:
            if one not in self.history or not one.may_be_swept:
                raise Wrong(f"{one} is parked, and no sweep of another history could have hit it")
            if one.transaction_id in found.ledger:
                raise Wrong(f"{one} is parked, and its row is in the ledger")
        # Only messages that a restore lost may be missing.
        for one in self.attempts:
            is_held = one in self.history or one in self.abandoned
            if one.is_committed and one.told and not is_held:
                raise Wrong(f"{one} committed, and no broker ever held its messages")

    def _judge_consumed(self, found: Found) -> None:
        broken = {one.consumes for one in self.attempts if one.is_broken_by_user}
        consumed, expected = found.consumed - broken, self.consumed_ids() - broken
        if found.unfinished - broken or consumed != expected:
            raise Wrong(f"consumed {consumed}, not {expected}; in part {found.unfinished}")

    def _judge_ledger(self, found: Found) -> None:
        by_id = {one.transaction_id: one for one in self.attempts}
        for transaction_id, outcome in found.ledger.items():
            one = by_id.get(transaction_id)
            if one is None:
                raise Wrong(f"a row without an owner: {transaction_id}")
            if (outcome == "committed") != one.is_committed:
                raise Wrong(f"the ledger says {outcome} of {one}")
            if one.is_committed and one in self.history:
                raise Wrong(f"the janitor left the row of {one}")
