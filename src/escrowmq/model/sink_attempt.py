"""Names of the Spark sink's half messages: they tell which write a half message belongs to.

An attempt is the half messages of one call of a task's ``write``. Its producer group contains the
app id, and its transaction id everything else, so a list of transactions shows which attempts no
driver will ever commit.

With several brokers, one is the app id's home, where the attempt has the same names as with a
single broker. Its half messages on any other broker are a part, whose names contain the home and
the first half message there: the part ends as the attempt at home does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from escrowmq.model.errors import RequestRefused

GROUP_PREFIX = "%SINK%"
PLAIN_QUERY = "write"
"""Query id of writes that are not a stream: their batches have names, not numbers."""

BATCH_MARK = "+"
"""Separates a query from its batch in the query id of a write in ``foreachBatch``."""

HOME_MARK = "@"
"""Precedes the home's name or half offset in the names of a part; not legal in an app id."""

OPENING_TOPIC = f"{GROUP_PREFIX}opened"
"""Topic of the message that opens an attempt at its home if no row goes there. Never consumed."""

AGE_MS_MAX = 24 * 3_600_000
"""A younger attempt is ended only on evidence, because a job may take this long."""

NAME_CHARS_MAX = 64
RUN_CHARS = 8
"""Characters of the run's id in a name. They suffice, because a query has few runs."""

_APP = rf"[A-Za-z0-9_-]{{1,{NAME_CHARS_MAX}}}"
_BATCH = rf"[A-Za-z0-9_.:+-]{{1,{NAME_CHARS_MAX}}}"

POSITION_MARK = "L"
"""Precedes a log position. Older names have a driver's clock time instead, without this mark."""

NO_POSITION = -1
"""Start of a run whose names have a time instead: it is neither before nor after other runs."""

TRANSACTION_PATTERN = (
    rf"^({PLAIN_QUERY}|[0-9a-f-]{{36}}(?:[+][0-9]{{1,18}})?)/({_BATCH})/({POSITION_MARK}?[0-9]{{1,18}})"
    rf"/([0-9a-f]{{{RUN_CHARS}}})/([0-9]{{1,9}})/([0-9a-f]{{32}})$"
)
"""Query, batch, start of the run, run, partition, attempt. Valid in Java and in Python."""


@dataclass(frozen=True, slots=True)
class HeldAs:
    """Names of an attempt's half messages at one broker."""

    producer_group: str
    transaction_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRun:
    """One start of a streaming query, or one plain write."""

    app_id: str
    #: Spark's query id, or ``PLAIN_QUERY``. In ``foreachBatch``, a mark and Spark's batch follow.
    query_id: str
    #: The first ``RUN_CHARS`` characters of the run's id.
    run: str
    #: End of the home's log when the run began, so that a later run has a higher position. A
    #: driver's clock may be set back.
    opened_at: int

    @property
    def producer_group(self) -> str:
        """The producer group of its half messages."""
        return f"{GROUP_PREFIX}{self.app_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkAttempt:
    """The half messages of one call of ``write``, in one batch of one run."""

    run: SinkRun
    #: A number; a name in a plain write and in ``foreachBatch``.
    batch: int | str
    partition: int
    #: Hexadecimal digits of a UUID, made for this call.
    attempt: str

    @property
    def transaction_id(self) -> str:
        """The transaction id of its half messages."""
        run = self.run
        where = f"{run.query_id}/{self.batch}/{POSITION_MARK}{run.opened_at}/{run.run}"
        return f"{where}/{self.partition}/{self.attempt}"

    @property
    def at_home(self) -> HeldAs:
        """Its names at its home, where it is decided."""
        return HeldAs(self.run.producer_group, self.transaction_id)

    def elsewhere(self, home: str, half_offset: int) -> HeldAs:
        """Its names at another broker, given its first half message at this home."""
        return HeldAs(
            f"{self.run.producer_group}{HOME_MARK}{home}",
            f"{self.transaction_id}{HOME_MARK}{half_offset}",
        )


@dataclass(frozen=True, slots=True)
class HomePart:
    """The half message at the home that decides a part."""

    #: The broker's name.
    broker: str
    half_offset: int
    held_as: HeldAs


def is_part(producer_group: str) -> bool:
    """Whether another broker decides this group's half messages."""
    return producer_group.startswith(GROUP_PREFIX) and HOME_MARK in producer_group


def parse_part(producer_group: str, transaction_id: str) -> HomePart | None:
    """Return where this part is decided; None if these names are not a part's."""
    group, mark, home = producer_group.partition(HOME_MARK)
    attempt, _, half_offset = transaction_id.rpartition(HOME_MARK)
    is_numbered = re.fullmatch("[0-9]{1,18}", half_offset) is not None
    if not mark or not home or not is_numbered or parse_attempt(group, attempt) is None:
        return None
    return HomePart(home, int(half_offset), HeldAs(group, attempt))


def parse_attempt(producer_group: str, transaction_id: str) -> SinkAttempt | None:
    """Return the attempt with these names; None if they name something else."""
    app_id = producer_group.removeprefix(GROUP_PREFIX)
    named = re.match(TRANSACTION_PATTERN, transaction_id)
    if app_id == producer_group or named is None:
        return None
    query_id, batch, opened, run, partition, attempt = named.groups()
    is_name = has_names(query_id)
    if not is_name and not batch.isdecimal():
        return None
    has_position = opened.startswith(POSITION_MARK)
    opened_at = int(opened.removeprefix(POSITION_MARK)) if has_position else NO_POSITION
    return SinkAttempt(
        run=SinkRun(app_id=app_id, query_id=query_id, run=run, opened_at=opened_at),
        batch=batch if is_name else int(batch),
        partition=int(partition),
        attempt=attempt,
    )


def has_names(query_id: str) -> bool:
    """Whether the batches of this query have names, not numbers."""
    return query_id == PLAIN_QUERY or BATCH_MARK in query_id


def check_app_id(app_id: str) -> str:
    """Return the app id; refuse an illegal one."""
    return _checked("appId", app_id, _APP, "letters, digits, _ and -")


def check_batch_name(name: str) -> str:
    """Return the name of a batch; refuse an illegal one."""
    return _checked("batchId", name, _BATCH, "letters, digits and _ . : + -")


def _checked(option: str, value: str, pattern: str, legal: str) -> str:
    if not re.fullmatch(pattern, value):
        why = f"1 to {NAME_CHARS_MAX} {legal}"
        raise RequestRefused("bad_option", why, option=option, value=value[:256])
    return value
