"""The names of what the Spark sink holds: which write a half message belongs to.

An attempt is what one call of a task's ``write`` holds.  Its producer group tells the app id, its
transaction id all the rest, so that whoever lists transactions can tell which of them nobody will
ever commit.

Over several brokers an attempt has a part at each.  One of them is the app id's home, where the
attempt is named as if it were the only one.  The names of every other part tell that broker and
the half message there: what becomes of the one becomes of the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from escrowmq.model.errors import RequestRefused

GROUP_PREFIX = "%SINK%"
PLAIN_QUERY = "write"
"""The query id of writes that are no stream: their batches have names, not numbers."""

BATCH_MARK = "+"
"""Stands between a query and its batch in the query id of a write in ``foreachBatch``."""

HOME_MARK = "@"
"""Stands before what the names of a part tell of its home; an app id has none."""

OPENING_TOPIC = f"{GROUP_PREFIX}opened"
"""Where an attempt is opened at home that has no message for it yet: nobody reads it."""

AGE_MS_MAX = 24 * 3_600_000
"""Before that, only evidence ends an attempt: a job may take so long."""

NAME_CHARS_MAX = 64
RUN_CHARS = 8
"""Of the run's id: runs of one query are few."""

_APP = rf"[A-Za-z0-9_-]{{1,{NAME_CHARS_MAX}}}"
_BATCH = rf"[A-Za-z0-9_.:+-]{{1,{NAME_CHARS_MAX}}}"

POSITION_MARK = "L"
"""Stands before a position in the log; a time of a driver's clock, as names once had, has none."""

NO_POSITION = -1
"""Where a run began if its names tell a time instead: before or after no other run."""

TRANSACTION_PATTERN = (
    rf"^({PLAIN_QUERY}|[0-9a-f-]{{36}}(?:[+][0-9]{{1,18}})?)/({_BATCH})/({POSITION_MARK}?[0-9]{{1,18}})"
    rf"/([0-9a-f]{{{RUN_CHARS}}})/([0-9]{{1,9}})/([0-9a-f]{{32}})$"
)
"""Query, batch, where its run began, run, partition, attempt.  Java's and Python's alike."""


@dataclass(frozen=True, slots=True)
class HeldAs:
    """What half messages of the sink are called at a broker."""

    producer_group: str
    transaction_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRun:
    """One start of a streaming query, or one plain write."""

    app_id: str
    #: As Spark tells it, or ``PLAIN_QUERY``; of a write in ``foreachBatch`` with Spark's batch.
    query_id: str
    #: The start of its id.
    run: str
    #: Where the log of its home ended when it began, so that a later run has a higher position.
    #: No driver's clock: that may be set back.
    opened_at: int

    @property
    def producer_group(self) -> str:
        """The group of its half messages."""
        return f"{GROUP_PREFIX}{self.app_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkAttempt:
    """What one call of ``write`` holds, in one batch of one run."""

    run: SinkRun
    #: A number in a stream, a name else.
    batch: int | str
    partition: int
    #: A UUID's hexadecimal digits, made for this call.
    attempt: str

    @property
    def transaction_id(self) -> str:
        """The transaction id of its half messages."""
        run = self.run
        where = f"{run.query_id}/{self.batch}/{POSITION_MARK}{run.opened_at}/{run.run}"
        return f"{where}/{self.partition}/{self.attempt}"

    @property
    def at_home(self) -> HeldAs:
        """Its names where it is decided."""
        return HeldAs(self.run.producer_group, self.transaction_id)

    def elsewhere(self, home: str, half_offset: int) -> HeldAs:
        """Its names at another broker, given its first half message at this home."""
        return HeldAs(
            f"{self.run.producer_group}{HOME_MARK}{home}",
            f"{self.transaction_id}{HOME_MARK}{half_offset}",
        )


@dataclass(frozen=True, slots=True)
class HomePart:
    """Where it is decided what becomes of a part."""

    #: The broker's name.
    broker: str
    half_offset: int
    held_as: HeldAs


def is_part(producer_group: str) -> bool:
    """Whether what this group holds is decided at another broker."""
    return producer_group.startswith(GROUP_PREFIX) and HOME_MARK in producer_group


def parse_part(producer_group: str, transaction_id: str) -> HomePart | None:
    """Where this part is decided; None if these names do not tell."""
    group, mark, home = producer_group.partition(HOME_MARK)
    attempt, _, half_offset = transaction_id.rpartition(HOME_MARK)
    is_numbered = re.fullmatch("[0-9]{1,18}", half_offset) is not None
    if not mark or not home or not is_numbered or parse_attempt(group, attempt) is None:
        return None
    return HomePart(home, int(half_offset), HeldAs(group, attempt))


def parse_attempt(producer_group: str, transaction_id: str) -> SinkAttempt | None:
    """The attempt that these name; None if they name something else."""
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
    """The app id, if it can be one."""
    if not re.fullmatch(_APP, app_id):
        raise RequestRefused(
            "bad_option",
            f"1 to {NAME_CHARS_MAX} letters, digits, _ and -",
            option="appId",
            value=app_id[:256],
        )
    return app_id


def check_batch_name(name: str) -> str:
    """The name of a batch, if it can be one."""
    if not re.fullmatch(_BATCH, name):
        raise RequestRefused(
            "bad_option",
            f"1 to {NAME_CHARS_MAX} letters, digits and _ . : + -",
            option="batchId",
            value=name[:256],
        )
    return name
