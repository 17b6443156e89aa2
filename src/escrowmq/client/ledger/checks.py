"""Look up outcomes in the ledger, and fence off transactions that are absent past their deadline.

The answer is COMMITTED only after reading ``committed``, and ROLLED_BACK only after reading
``rolled_back``, both in the ledger that the half messages name; only a dry run also answers
ROLLED_BACK for a fence that was not written. Everything else is UNKNOWN with a reason: another
database, a lock, a row that the SDK did not write, any error. Nothing here creates a table or file.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, NotRequired, TypedDict, Unpack

from escrowmq.client.database.connections import DatabaseConnection, ResultRow
from escrowmq.client.database.databases import Opener, cutting, reading, writing
from escrowmq.client.database.errors import Failure, failure_of
from escrowmq.client.database.ledger_sql import SQLITE, are_names, is_name
from escrowmq.client.ledger.marks import SWEPT_MEANWHILE, FenceLimits, read_marks
from escrowmq.model.errors import EscrowError
from escrowmq.model.event_log import event_log
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.model.lineage import Sight

#: Maximum number of transactions in one statement, and in one database transaction of ours.
CHUNK_ROWS_MAX = 4_096
#: A chunk that hits a lock is split into this many parts. One locked row among 4,096 is then
#: isolated after four waits; halving would take twelve.
SPLIT_COUNT = 8
#: Lock timeouts after which an inquiry leaves its remaining rows for the next inquiry.
LOCK_WAITS_MAX = 32
#: Maximum duration of an inquiry; transactions that are unanswered by then stay UNKNOWN.
SECONDS_MAX = 20.0

log = event_log(__name__)


class LedgerAnswer(NamedTuple):
    """An outcome, and for UNKNOWN the reason."""

    outcome: LedgerOutcome
    reason: str = ""


class Question(NamedTuple):
    """A transaction to look up; the deadline is on the broker's clock."""

    transaction_id: str
    producer_group: str
    deadline_at_ms: int
    #: Half offset of the transaction's first half message.
    half_offset: int = 0


Answers = dict[str, LedgerAnswer]
"""By transaction id: one answer for each question."""

Groups = Mapping[str, str]
"""By transaction id: its producer group, in the order in which rows are locked."""

Halves = Mapping[str, int]
"""By transaction id: the half offset of the transaction's first half message."""

#: No row was found. Past its deadline, the transaction can be fenced off.
ABSENT = LedgerAnswer(LedgerOutcome.UNKNOWN, "absent")
#: Answer of a dry run: a fence can be written, and would roll the transaction back.
FENCED = LedgerAnswer(LedgerOutcome.ROLLED_BACK)
LOCKED = LedgerAnswer(LedgerOutcome.UNKNOWN, Failure.LOCKED.value)
LATE = LedgerAnswer(LedgerOutcome.UNKNOWN, "out_of_time")
AMBIGUOUS = LedgerAnswer(LedgerOutcome.UNKNOWN, "ambiguous")
ILLEGAL = LedgerAnswer(LedgerOutcome.UNKNOWN, "illegal_id")
ODD_ROW = LedgerAnswer(LedgerOutcome.UNKNOWN, "odd_row")
OTHER_GROUP = LedgerAnswer(LedgerOutcome.UNKNOWN, "other_group")
_BY_ROW = {
    LedgerOutcome.COMMITTED.value: LedgerAnswer(LedgerOutcome.COMMITTED),
    LedgerOutcome.ROLLED_BACK.value: LedgerAnswer(LedgerOutcome.ROLLED_BACK),
}


class _NotTheLedger(Exception):
    """The database is not the ledger that the half messages name, or not its primary."""


class _MarksMoved(Exception):
    """A sweep changed the marks while rows were being fenced."""


def deadline_at_ms(stored_at_ms: int, allowed_ms: int) -> int:
    """Return the time until which a sender may commit; an absent row can be fenced after it.

    There is no margin: the fence and the row have the same primary key in one table. An early fence
    makes a slow transaction fail, and breaks nothing.
    """
    return stored_at_ms + allowed_ms


def look_up(opener: Opener, questions: Iterable[Question], *, ledger_uuid: str) -> Answers:
    """Read the ledger without changing it."""
    questions = list(questions)
    return Inquiry(opener, ledger_uuid).look_up(
        [question.transaction_id for question in questions],
        [question.producer_group for question in questions],
    )


class Asking(TypedDict):
    """The ledger that the half messages name, and the time and history of their broker."""

    ledger_uuid: str
    #: The broker's time now, which the deadlines are compared with.
    now_ms: int
    #: The broker's history, taken before the questions were read. Without it nothing is fenced in a
    #: ledger that was ever swept.
    sight: NotRequired[Sight | None]


def resolve(
    opener: Opener,
    questions: Iterable[Question],
    *,
    is_foreseen: bool = False,
    **asking: Unpack[Asking],
) -> Answers:
    """Read first, then fence off what is absent and past its deadline.

    ``is_foreseen`` makes it a dry run: ROLLED_BACK then stands for a fence that can be written.
    """
    questions, now_ms = list(questions), asking["now_ms"]
    ids = [question.transaction_id for question in questions]
    early = {one.transaction_id for one in questions if one.deadline_at_ms >= now_ms}
    return Inquiry(opener, asking["ledger_uuid"]).resolve(
        ids,
        [question.producer_group for question in questions],
        # If two questions have one id, both must be past their deadlines.
        set(ids) - early,
        asking.get("sight"),
        [question.half_offset for question in questions],
        is_foreseen=is_foreseen,
    )


class Inquiry:
    """Inquiry at one ledger about any number of transactions.

    One time limit for all of them runs from its creation; once connected, a call that exceeds it is
    cut off. After an error or the limit, transactions without an answer are UNKNOWN at once.
    """

    def __init__(
        self,
        opener: Opener,
        ledger_uuid: str,
        *,
        seconds_max: float = SECONDS_MAX,
        without_secrets: Callable[[str], str] = str,
    ) -> None:
        self._opener = opener
        self._ledger_uuid = ledger_uuid
        #: Removes the secrets of the database URL from a driver's error text.
        self._without_secrets = without_secrets
        self._until = time.monotonic() + seconds_max
        self._lock_waits = 0
        #: Why the inquiry stopped: the answer for the rest, and the text of the error.
        self.failed: LedgerAnswer | None = None
        self.cause = ""

    def look_up(self, ids: Sequence[str], groups: Sequence[str]) -> Answers:
        """Read the ledger without changing it."""
        askable, answers = _sorted_out(ids, groups)
        answers |= dict.fromkeys(askable, ABSENT)
        self._work(askable, answers, self._read_all)
        return answers

    def resolve(
        self,
        ids: Sequence[str],
        groups: Sequence[str],
        overdue: Collection[str],
        sight: Sight | None = None,
        half_offsets: Sequence[int] = (),
        *,
        is_foreseen: bool = False,
    ) -> Answers:
        """Read first, then fence off what is absent and among the overdue.

        All have half messages at one broker. ``sight`` is its history, taken before they were read.
        ``is_foreseen`` makes it a dry run: ROLLED_BACK then stands for a fence that can be written.
        """
        answers = self.look_up(ids, groups)
        absent = {
            key: group
            for key, group in zip(ids, groups, strict=True)
            if answers[key] is ABSENT and key in overdue
        }
        if absent:
            fences = {key: absent[key] for key in sorted(absent)}
            halves = dict(zip(ids, half_offsets, strict=False))
            step = self._foresee_all if is_foreseen else self._fence_all
            self._work(
                fences, answers, lambda connection, all_of: step(connection, all_of, sight, halves)
            )
        return answers

    def _work(self, groups: Groups, answers: Answers, step: _Step) -> None:
        """Run a step and collect its answers; if it fails, absent transactions get the reason."""
        if self.failed is None:
            try:
                with self._opener() as connection, cutting(connection, self._until):
                    for found in step(connection, groups):
                        answers.update(found)
            except Exception as error:  # noqa: BLE001 -- any failure gives the same answer
                self.failed = self._failure(error)
        if self.failed is not None:
            answers.update((key, self.failed) for key in groups if answers[key] is ABSENT)

    def _failure(self, error: Exception) -> LedgerAnswer:
        answer = LATE if time.monotonic() >= self._until else _answer_of(error)
        self.cause = self._without_secrets(str(error))
        log.warning("ledger_check_failed", extra={"reason": answer.reason, "cause": self.cause})
        return answer

    def _is_late(self) -> bool:
        if time.monotonic() >= self._until:
            self.failed = LATE
        return self.failed is not None

    def _read_all(self, connection: DatabaseConnection, groups: Groups) -> Iterator[Answers]:
        for chunk in _chunks(groups, CHUNK_ROWS_MAX):
            if self._is_late():
                return
            with reading(connection):
                _check_ledger(connection, self._ledger_uuid)
                found = connection.execute(
                    connection.dialect.read, [connection.dialect.pack(chunk)]
                )
            yield _answers(chunk, found.rows)

    def _foresee_all(
        self, connection: DatabaseConnection, groups: Groups, sight: Sight | None, halves: Halves
    ) -> Iterator[Answers]:
        """Yield FENCED where ``_fence_all`` would try to write a fence; a lock may stop that."""
        with reading(connection):
            limits = read_marks(connection).limits(sight)
        answers, fenced = _unfenceable(groups, limits, halves)
        yield answers | dict.fromkeys(fenced, FENCED)

    def _fence_all(
        self, connection: DatabaseConnection, groups: Groups, sight: Sight | None, halves: Halves
    ) -> Iterator[Answers]:
        """Fence in chunks; split a chunk that hits a lock until the locked transaction is alone.

        The parts go to the end of the queue, so a locked transaction does not delay the others.
        """
        waiting = deque(_chunks(groups, CHUNK_ROWS_MAX))
        while waiting and not self._is_late():
            chunk = waiting.popleft()
            if self._lock_waits >= LOCK_WAITS_MAX:
                yield dict.fromkeys(chunk, LOCKED)
                continue
            try:
                yield _fence(connection, chunk, self._ledger_uuid, sight, halves)
            except _MarksMoved:
                yield dict.fromkeys(chunk, LedgerAnswer(LedgerOutcome.UNKNOWN, SWEPT_MEANWHILE))
            except Exception as error:
                if failure_of(error) is not Failure.LOCKED:
                    raise
                self._lock_waits += 1
                if len(chunk) == 1 or connection.dialect is SQLITE:
                    # SQLite has one lock for the whole database; a smaller chunk would hit it too.
                    yield dict.fromkeys(chunk, LOCKED)
                else:
                    waiting += _chunks(chunk, -(-len(chunk) // SPLIT_COUNT))


_Step = Callable[[DatabaseConnection, Groups], Iterator[Answers]]


def _sorted_out(ids: Sequence[str], groups: Sequence[str]) -> tuple[dict[str, str], Answers]:
    """Return the valid questions in lock order, and the answers to the invalid ones."""
    asked = dict(zip(ids, groups, strict=True))
    refused: Answers = {}
    if len(asked) < len(ids):
        refused = {
            key: AMBIGUOUS for key, group in zip(ids, groups, strict=True) if asked[key] != group
        }
    if not (are_names(asked) and are_names(set(groups))):
        refused |= {
            key: ILLEGAL
            for key, group in asked.items()
            if key not in refused and not (is_name(key) and is_name(group))
        }
    keys = sorted(asked.keys() - refused.keys()) if refused else sorted(asked)
    return {key: asked[key] for key in keys}, refused


def _chunks(groups: Groups, rows_max: int) -> Iterator[dict[str, str]]:
    items = iter(groups.items())
    while chunk := dict(islice(items, rows_max)):
        yield chunk


def _answer_of(error: Exception) -> LedgerAnswer:
    if isinstance(error, _NotTheLedger):
        return LedgerAnswer(LedgerOutcome.UNKNOWN, str(error))
    reason = error.code if isinstance(error, EscrowError) else failure_of(error).value
    return LedgerAnswer(LedgerOutcome.UNKNOWN, reason)


def _check_ledger(connection: DatabaseConnection, ledger_uuid: str) -> None:
    """Raise unless this is the primary of the ledger that the half messages name."""
    rows = connection.execute(connection.dialect.probe).rows
    if len(rows) != 1 or rows[0][0] != ledger_uuid:
        raise _NotTheLedger("other_ledger")
    _, _, is_standby = rows[0]
    if is_standby:
        raise _NotTheLedger("standby")


def _answers(groups: Groups, rows: Sequence[ResultRow]) -> Answers:
    """Return what the rows say; a transaction without a row gets no answer."""
    answers: Answers = {}
    for key, group, outcome in rows:
        if groups.get(key) == group:
            answers[key] = _BY_ROW.get(outcome, ODD_ROW)
        elif key in groups:
            answers[key] = OTHER_GROUP
    return answers


def _fence(
    connection: DatabaseConnection,
    chunk: Groups,
    ledger_uuid: str,
    sight: Sight | None,
    halves: Halves,
) -> Answers:
    """Write ``rolled_back`` where there is no row, and read the resulting rows.

    The INSERT waits for a transaction that is writing the same row, so the read after it sees that
    row or ours. A fence counts only after it is committed. A transaction whose row may have been
    swept is not fenced: the marks are read before the INSERT, and again after it, because a
    sweep may delete a row between the two.
    """
    dialect = connection.dialect
    with writing(connection):
        _check_ledger(connection, ledger_uuid)
        marks = read_marks(connection)
        answers, chunk = _unfenceable(chunk, marks.limits(sight), halves)
        if not chunk:
            return answers
        for statement in dialect.make_durable:
            connection.execute(statement)
        fenced = connection.execute(dialect.fence, dialect.pack_pairs(chunk))
        if dialect.is_fence_returned:
            answers |= _answers(chunk, fenced.rows)
        others = [key for key in chunk if key not in answers]
        if others:
            found = connection.execute(dialect.read_locked, [dialect.pack(others)])
            answers |= _answers(chunk, found.rows)
        if read_marks(connection) != marks:
            raise _MarksMoved
    return answers


def _unfenceable(chunk: Groups, limits: FenceLimits, halves: Halves) -> tuple[Answers, Groups]:
    """Return answers for the transactions that must not be fenced, and the remaining ones."""
    if not limits.reason and not limits.swept_below:
        return {}, chunk
    reasons = {key: limits.reason_for(halves.get(key, 0)) for key in chunk}
    answers = {
        key: LedgerAnswer(LedgerOutcome.UNKNOWN, reason)
        for key, reason in reasons.items()
        if reason
    }
    return answers, {key: group for key, group in chunk.items() if key not in answers}
