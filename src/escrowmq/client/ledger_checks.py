"""What became of transactions: read in the ledger, and fence off what is absent past its deadline.

COMMITTED is answered only after reading ``committed``, ROLLED_BACK only after reading
``rolled_back``, both in the ledger that the half messages name.  Everything else is UNKNOWN, with
the reason: another database, a lock, a row that nobody of ours wrote, any error.  Nothing here
makes a table or a file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from escrowmq.client import ledger_sql
from escrowmq.client.database_errors import Failure, failure_of
from escrowmq.client.databases import Opener, reading, writing
from escrowmq.client.ledger_sql import SQLITE, is_name
from escrowmq.client.links import Link
from escrowmq.model.errors import EscrowError

#: Rows in one statement.  Three parameters each stay below what old builds of SQLite take (999).
CHUNK_ROWS_MAX = 256
#: How often one round may run into somebody's lock before it leaves the rest for the next one.
LOCK_WAITS_MAX = 32

log = logging.getLogger(__name__)


class Outcome(StrEnum):
    """What became of a transaction in the user's database.  The first two are also in its rows."""

    COMMITTED = ledger_sql.COMMITTED
    ROLLED_BACK = ledger_sql.ROLLED_BACK
    UNKNOWN = "unknown"


class Answer(NamedTuple):
    """An outcome, and for UNKNOWN the reason."""

    outcome: Outcome
    reason: str = ""


class Question(NamedTuple):
    """A transaction that is asked about; the deadline is on the broker's clock."""

    transaction_id: str
    producer_group: str
    deadline_at_ms: int


Answers = dict[str, Answer]
"""By transaction id: one for each that was asked about."""

#: Past its deadline this one can be fenced off.
ABSENT = Answer(Outcome.UNKNOWN, "absent")
LOCKED = Answer(Outcome.UNKNOWN, Failure.LOCKED)


class _NotTheLedger(Exception):
    """The database that was reached is not the one that was asked for, or not its primary."""


def look_up(opener: Opener, questions: Iterable[Question], *, ledger_uuid: str) -> Answers:
    """Read what is in the ledger, and change nothing."""
    answers, askable = _sort(questions)
    try:
        with opener() as link:
            for chunk in _chunks(askable):
                answers |= _read(link, chunk, ledger_uuid)
    except Exception as error:  # noqa: BLE001 -- whatever failed, the answer is the same
        _give_up(answers, error)
    return answers


def settle(
    opener: Opener, questions: Iterable[Question], *, ledger_uuid: str, now_ms: int
) -> Answers:
    """Read first; then fence off what is absent and past its deadline by ``now_ms``."""
    questions = list(questions)
    answers = look_up(opener, questions, ledger_uuid=ledger_uuid)
    overdue = [
        question
        for question in {question.transaction_id: question for question in questions}.values()
        if answers[question.transaction_id] == ABSENT and question.deadline_at_ms < now_ms
    ]
    if not overdue:
        return answers
    try:
        with opener() as link:
            for chunk_answers in _fence_all(link, overdue, ledger_uuid, now_ms):
                answers |= chunk_answers
    except Exception as error:  # noqa: BLE001 -- as above
        overdue_ids = {question.transaction_id for question in overdue}
        left = {key: ABSENT for key in overdue_ids if answers[key] == ABSENT}
        _give_up(left, error)
        answers |= left
    return answers


def _sort(questions: Iterable[Question]) -> tuple[Answers, list[Question]]:
    """Answer what no database need be asked; the rest in the order in which it is locked."""
    answers: Answers = {}
    asked: dict[str, Question] = {}
    for question in questions:
        key = question.transaction_id
        first = asked.setdefault(key, question)
        if first.producer_group != question.producer_group:
            answers[key] = Answer(Outcome.UNKNOWN, "ambiguous")
        elif not is_name(key) or not is_name(question.producer_group):
            answers[key] = Answer(Outcome.UNKNOWN, "illegal_id")
        else:
            answers.setdefault(key, ABSENT)
    return answers, [asked[key] for key in sorted(asked) if answers[key] == ABSENT]


def _chunks(questions: Sequence[Question]) -> Iterator[Sequence[Question]]:
    for start in range(0, len(questions), CHUNK_ROWS_MAX):
        yield questions[start : start + CHUNK_ROWS_MAX]


def _give_up(answers: Answers, error: Exception) -> None:
    """What has no answer yet gets the reason why it stays without one."""
    reason = _reason(error)
    log.warning("ledger_check_failed", extra={"reason": reason, "cause": str(error)})
    for key, answer in answers.items():
        if answer == ABSENT:
            answers[key] = Answer(Outcome.UNKNOWN, reason)


def _reason(error: Exception) -> str:
    if isinstance(error, _NotTheLedger):
        return str(error)
    return error.code if isinstance(error, EscrowError) else failure_of(error).value


def _read(link: Link, chunk: Sequence[Question], ledger_uuid: str) -> Answers:
    with reading(link):
        _check_ledger(link, ledger_uuid)
        return _answers(link, chunk)


def _check_ledger(link: Link, ledger_uuid: str) -> None:
    """Rule 4: only the ledger that the half messages name can say anything about them."""
    rows = link.execute(link.dialect.probe).rows
    if len(rows) != 1 or rows[0][0] != ledger_uuid:
        raise _NotTheLedger("other_ledger")
    _, _, is_standby = rows[0]
    if is_standby:
        raise _NotTheLedger("standby")


def _answers(link: Link, chunk: Sequence[Question], locking: str = "") -> Answers:
    ids = [question.transaction_id for question in chunk]
    rows = link.execute(ledger_sql.read_sql(len(ids), locking), ids).rows
    found = {row[0]: row for row in rows}
    return {
        question.transaction_id: _answer(question, found.get(question.transaction_id))
        for question in chunk
    }


def _answer(question: Question, row: tuple[str, str, str] | None) -> Answer:
    if row is None:
        return ABSENT
    _, producer_group, outcome = row
    if producer_group != question.producer_group:
        return Answer(Outcome.UNKNOWN, "other_group")
    if outcome not in {Outcome.COMMITTED, Outcome.ROLLED_BACK}:
        return Answer(Outcome.UNKNOWN, "odd_row")
    return Answer(Outcome(outcome))


def _fence_all(
    link: Link, overdue: Sequence[Question], ledger_uuid: str, now_ms: int
) -> Iterator[Answers]:
    """Fence in chunks; one that meets a lock is halved until the locked transaction is alone."""
    waiting = list(reversed(list(_chunks(overdue))))
    lock_waits = 0
    while waiting:
        chunk = waiting.pop()
        if lock_waits >= LOCK_WAITS_MAX:
            yield _all_locked(chunk)
            continue
        try:
            yield _fence(link, chunk, ledger_uuid, now_ms)
        except Exception as error:
            if failure_of(error) is not Failure.LOCKED:
                raise
            lock_waits += 1
            if len(chunk) == 1 or link.dialect is SQLITE:
                # SQLite has one lock for everything: a smaller chunk would meet it too.
                yield _all_locked(chunk)
            else:
                middle = len(chunk) // 2
                waiting += [chunk[middle:], chunk[:middle]]


def _all_locked(chunk: Sequence[Question]) -> Answers:
    return {question.transaction_id: LOCKED for question in chunk}


def _fence(link: Link, chunk: Sequence[Question], ledger_uuid: str, now_ms: int) -> Answers:
    """Write ``rolled_back`` where there is no row, and read what stands there in the end.

    The INSERT waits for whoever is writing the same row, so the read after it sees that one's row
    or ours.  Only when ours is committed may anybody act on it.
    """
    values = [
        value
        for question in chunk
        for value in (question.transaction_id, question.producer_group, str(now_ms))
    ]
    with writing(link):
        _check_ledger(link, ledger_uuid)
        for statement in link.dialect.make_durable:
            link.execute(statement)
        link.execute(ledger_sql.fence_sql(len(chunk)), values)
        return _answers(link, chunk, link.dialect.locking)
