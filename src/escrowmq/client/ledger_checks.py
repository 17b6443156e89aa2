"""Look up outcomes in the ledger, and fence off transactions that are absent past their deadline.

The answer is COMMITTED only after reading ``committed``, and ROLLED_BACK only after reading
``rolled_back``, both in the ledger that the half messages name. Everything else is UNKNOWN with a
reason: another database, a lock, a row that the SDK did not write, any error. Nothing here creates
a table or a file.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from escrowmq.client import ledger_sql
from escrowmq.client.database_errors import Failure, failure_of
from escrowmq.client.databases import Opener, cutting, reading, writing
from escrowmq.client.ledger_marks import SWEPT_MEANWHILE, Limits, read_marks
from escrowmq.client.ledger_sql import SQLITE, are_names, is_name
from escrowmq.client.links import Link, Row
from escrowmq.model.errors import EscrowError
from escrowmq.model.event_log import event_log
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


class Outcome(StrEnum):
    """Outcome of a transaction in the user's database. Its rows hold the first two values."""

    COMMITTED = ledger_sql.COMMITTED
    ROLLED_BACK = ledger_sql.ROLLED_BACK
    UNKNOWN = "unknown"


class Answer(NamedTuple):
    """An outcome, and for UNKNOWN the reason."""

    outcome: Outcome
    reason: str = ""


class Question(NamedTuple):
    """A transaction to look up; the deadline is on the broker's clock."""

    transaction_id: str
    producer_group: str
    deadline_at_ms: int
    #: The offset of its first half message.
    half_offset: int = 0


Answers = dict[str, Answer]
"""By transaction id: one answer for each question."""

Groups = Mapping[str, str]
"""By transaction id: its producer group, in the order in which rows are locked."""

#: No row was found. Past its deadline, the transaction can be fenced off.
ABSENT = Answer(Outcome.UNKNOWN, "absent")
#: The row is absent, past its deadline and not swept: a fence rolls the transaction back.
FENCED = Answer(Outcome.ROLLED_BACK)
LOCKED = Answer(Outcome.UNKNOWN, Failure.LOCKED.value)
LATE = Answer(Outcome.UNKNOWN, "out_of_time")
AMBIGUOUS = Answer(Outcome.UNKNOWN, "ambiguous")
ILLEGAL = Answer(Outcome.UNKNOWN, "illegal_id")
ODD_ROW = Answer(Outcome.UNKNOWN, "odd_row")
OTHER_GROUP = Answer(Outcome.UNKNOWN, "other_group")
_BY_ROW = {
    ledger_sql.COMMITTED: Answer(Outcome.COMMITTED),
    ledger_sql.ROLLED_BACK: Answer(Outcome.ROLLED_BACK),
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


def settle(
    opener: Opener,
    questions: Iterable[Question],
    *,
    ledger_uuid: str,
    now_ms: int,
    sight: Sight | None = None,
) -> Answers:
    """Read first, then fence off what is absent and past its deadline at ``now_ms``.

    ``sight`` is the broker's history, taken before the questions were read. Without it nothing is
    fenced in a ledger that was ever swept.
    """
    questions = list(questions)
    return Inquiry(opener, ledger_uuid).settle(
        [question.transaction_id for question in questions],
        [question.producer_group for question in questions],
        # If two questions have one id, both must be past their deadlines.
        {question.transaction_id for question in questions}
        - {question.transaction_id for question in questions if question.deadline_at_ms >= now_ms},
        sight,
        [question.half_offset for question in questions],
    )


def foresee(
    opener: Opener,
    questions: Iterable[Question],
    *,
    ledger_uuid: str,
    now_ms: int,
    sight: Sight | None = None,
) -> Answers:
    """Return what ``settle`` would answer, without writing a fence."""
    questions = list(questions)
    inquiry = Inquiry(opener, ledger_uuid)
    answers = inquiry.look_up(
        [question.transaction_id for question in questions],
        [question.producer_group for question in questions],
    )
    overdue = {
        question.transaction_id: question.half_offset
        for question in questions
        if answers[question.transaction_id] is ABSENT and question.deadline_at_ms < now_ms
    }
    if overdue:
        answers |= inquiry.foresee_fences(overdue, sight)
    return answers


class Inquiry:
    """Inquiry at one ledger about any number of transactions, with one time limit for all.

    After an error or a timeout the remaining transactions are UNKNOWN at once. So a caller that
    asks several ledgers waits for this one no longer than the limit.
    """

    def __init__(
        self, opener: Opener, ledger_uuid: str, *, seconds_max: float = SECONDS_MAX
    ) -> None:
        self._opener = opener
        self._ledger_uuid = ledger_uuid
        self._until = time.monotonic() + seconds_max
        self._lock_waits = 0
        #: Why the inquiry stopped, as an answer, and the text of the error.
        self.failed: Answer | None = None
        self.cause = ""

    def look_up(self, ids: Sequence[str], groups: Sequence[str]) -> Answers:
        """Read the ledger without changing it."""
        askable, answers = _sorted_out(ids, groups)
        answers |= dict.fromkeys(askable, ABSENT)
        self._work(askable, answers, self._read_all)
        return answers

    def settle(
        self,
        ids: Sequence[str],
        groups: Sequence[str],
        overdue: Collection[str],
        sight: Sight | None = None,
        half_offsets: Sequence[int] = (),
    ) -> Answers:
        """Read first, then fence off what is absent and among the overdue.

        All are half messages of one broker. ``sight`` is its history, taken before they were read.
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
            self._work(
                fences, answers, lambda link, all_of: self._fence_all(link, all_of, sight, halves)
            )
        return answers

    def foresee_fences(self, halves: Mapping[str, int], sight: Sight | None) -> Answers:
        """Return what fencing these half messages, by transaction id, would answer."""
        answers: Answers = dict.fromkeys(halves, ABSENT)

        def read(link: Link, _groups: Groups) -> Iterator[Answers]:
            with reading(link):
                limits = read_marks(link).limits(sight)
            for key, half_offset in halves.items():
                reason = limits.reason_for(half_offset)
                yield {key: Answer(Outcome.UNKNOWN, reason) if reason else FENCED}

        self._work(dict.fromkeys(halves, ""), answers, read)
        return answers

    def _work(self, groups: Groups, answers: Answers, step: _Step) -> None:
        """Run a step and collect its answers; if it fails, unanswered rows get the reason."""
        if self.failed is None:
            try:
                with self._opener() as link, cutting(link, self._until):
                    for found in step(link, groups):
                        answers.update(found)
            except Exception as error:  # noqa: BLE001 -- any failure gives the same answer
                self.failed = self._failure(error)
        if self.failed is not None:
            answers.update((key, self.failed) for key in groups if answers[key] is ABSENT)

    def _failure(self, error: Exception) -> Answer:
        answer = LATE if time.monotonic() >= self._until else _answer_of(error)
        self.cause = str(error)
        log.warning("ledger_check_failed", extra={"reason": answer.reason, "cause": str(error)})
        return answer

    def _is_late(self) -> bool:
        if time.monotonic() >= self._until:
            self.failed = LATE
        return self.failed is not None

    def _read_all(self, link: Link, groups: Groups) -> Iterator[Answers]:
        for chunk in _chunks(groups, CHUNK_ROWS_MAX):
            if self._is_late():
                return
            with reading(link):
                _check_ledger(link, self._ledger_uuid)
                found = link.execute(link.dialect.read, [link.dialect.pack(chunk)])
            yield _answers(chunk, found.rows)

    def _fence_all(
        self, link: Link, groups: Groups, sight: Sight | None, halves: Mapping[str, int]
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
                yield _fence(link, chunk, self._ledger_uuid, sight, halves)
            except _MarksMoved:
                yield dict.fromkeys(chunk, Answer(Outcome.UNKNOWN, SWEPT_MEANWHILE))
            except Exception as error:
                if failure_of(error) is not Failure.LOCKED:
                    raise
                self._lock_waits += 1
                if len(chunk) == 1 or link.dialect is SQLITE:
                    # SQLite has one lock for the whole database; a smaller chunk would hit it too.
                    yield dict.fromkeys(chunk, LOCKED)
                else:
                    waiting += _chunks(chunk, -(-len(chunk) // SPLIT_COUNT))


_Step = Callable[[Link, Groups], Iterator[Answers]]


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


def _answer_of(error: Exception) -> Answer:
    if isinstance(error, _NotTheLedger):
        return Answer(Outcome.UNKNOWN, str(error))
    reason = error.code if isinstance(error, EscrowError) else failure_of(error).value
    return Answer(Outcome.UNKNOWN, reason)


def _check_ledger(link: Link, ledger_uuid: str) -> None:
    """Rule 4: only the ledger that the half messages name can answer for them."""
    rows = link.execute(link.dialect.probe).rows
    if len(rows) != 1 or rows[0][0] != ledger_uuid:
        raise _NotTheLedger("other_ledger")
    _, _, is_standby = rows[0]
    if is_standby:
        raise _NotTheLedger("standby")


def _answers(groups: Groups, rows: Sequence[Row]) -> Answers:
    """Return what the rows say; a transaction without a row gets no answer."""
    answers: Answers = {}
    for key, group, outcome in rows:
        if groups.get(key) == group:
            answers[key] = _BY_ROW.get(outcome, ODD_ROW)
        elif key in groups:
            answers[key] = OTHER_GROUP
    return answers


def _fence(
    link: Link, chunk: Groups, ledger_uuid: str, sight: Sight | None, halves: Mapping[str, int]
) -> Answers:
    """Write ``rolled_back`` where there is no row, and read the resulting rows.

    The INSERT waits for a transaction that is writing the same row, so the read after it sees that
    row or ours. A fence counts only after it is committed. A row that may have been swept is not
    fenced: the marks are read before the INSERT, and again after it, because a sweep may delete a
    row between the two.
    """
    dialect = link.dialect
    with writing(link):
        _check_ledger(link, ledger_uuid)
        marks = read_marks(link)
        answers, chunk = _unfenceable(chunk, marks.limits(sight), halves)
        if not chunk:
            return answers
        for statement in dialect.make_durable:
            link.execute(statement)
        fenced = link.execute(dialect.fence, dialect.pack_pairs(chunk))
        if dialect.is_fence_returned:
            answers |= _answers(chunk, fenced.rows)
        others = [key for key in chunk if key not in answers]
        if others:
            found = link.execute(dialect.read_locked, [dialect.pack(others)])
            answers |= _answers(chunk, found.rows)
        if read_marks(link) != marks:
            raise _MarksMoved
    return answers


def _unfenceable(
    chunk: Groups, limits: Limits, halves: Mapping[str, int]
) -> tuple[Answers, Groups]:
    """Return answers for the transactions that must not be fenced, and the remaining ones."""
    if not limits.reason and not limits.swept_below:
        return {}, chunk
    reasons = {key: limits.reason_for(halves.get(key, 0)) for key in chunk}
    answers = {key: Answer(Outcome.UNKNOWN, reason) for key, reason in reasons.items() if reason}
    return answers, {key: group for key, group in chunk.items() if key not in answers}
