"""The shapes of what commands without a broker print with ``-o json``; see ``shapes.py``."""

from __future__ import annotations

from typing import Any

from escrowmq.cli.shapes import Shape

Value = bool | int | float | str


class SettingShape(Shape, frozen=True, kw_only=True):
    """A setting."""

    #: `section.key`.
    key: str
    value: Value
    #: `default`, `file …`, `env …` or `flag`.
    origin: str


class LedgerMigratedShape(Shape, frozen=True, kw_only=True):
    """A ledger that has the current version."""

    uuid: str
    #: Null if the ledger was made just now.
    version_before: int | None
    version: int


class LedgerMarkShape(Shape, frozen=True, kw_only=True):
    """A mark that a sweep left in a ledger: up to where of a store it swept."""

    #: The store's id.
    store: str
    #: The epoch of the store, one for each start of its broker.
    epoch: str
    log_end: int
    half_end: int


class LedgerShape(Shape, frozen=True, kw_only=True):
    """A ledger."""

    uuid: str
    #: `sqlite`, `postgresql` or `mysql`.
    database: str
    #: Of its tables.
    version: int
    #: The version that this release needs.
    current_version: int
    #: Whether a release without marks may have swept it.
    is_swept_unmarked: bool
    #: Rows by outcome.
    rows: dict[str, int]
    marks: list[LedgerMarkShape]


class LedgerSqlShape(Shape, frozen=True, kw_only=True):
    """SQL that makes or updates a ledger."""

    dialect: str
    sql: str


class LakeTableShape(Shape, frozen=True, kw_only=True):
    """A table of the lake."""

    table: str
    rows: int
    files: int
    bytes: int
    #: As in 2026-11-16; null without rows.
    first_day: str | None
    last_day: str | None
    #: Null if the table does not exist yet.
    version: int | None


class LakeCompactedShape(Shape, frozen=True, kw_only=True):
    """A table whose small files were merged, or would be in a dry run."""

    table: str
    files_merged: int
    files_made: int


class LakeVacuumedShape(Shape, frozen=True, kw_only=True):
    """A table from which rows and files were removed, or would be in a dry run."""

    table: str
    #: Files of days that are too old.
    files_deleted: int
    #: Files that belong to no table any more.
    files_removed: int


class LakeReplayedShape(Shape, frozen=True, kw_only=True):
    """Archived messages that were published again."""

    replay_id: str
    messages: int
    #: Whether an earlier run with this id has published them.
    was_done_before: bool


class RepairShape(Shape, frozen=True, kw_only=True):
    """A repair of a store."""

    #: Whether there was anything to repair.
    is_needed: bool
    #: Whether there is damage now.
    is_damaged: bool
    #: What was found, and what will be done about it; one line each.
    plan: list[str]
    #: What was done; one line each.
    done: list[str]
    #: True: nothing was done, this is what would be.
    is_dry_run: bool


class BackupShape(Shape, frozen=True, kw_only=True):
    """A backup, made or restored."""

    #: Of `backup`: where the copy is.  Of `restore`: the new data directory.
    directory: str
    #: Null in a dry run of `backup`.
    made_at_ms: int | None
    #: The release that made the backup.
    release: str
    #: Log offsets that the backup has: from, and up to.
    log_start: int
    log_end: int
    #: How many files; null in a dry run of `backup`.
    files: int | None
    #: Of all files; in a dry run of `backup`, of the log alone.
    bytes: int
    #: True: nothing was done, this is what would be.
    is_dry_run: bool


class DemoRunShape(Shape, frozen=True, kw_only=True):
    """One run of the demo."""

    #: Orders to pay, and orders that were paid.
    orders: int
    paid: int
    messages: int
    #: How many SIGKILLs were sent.
    kills: int
    #: From the first start of the order service to its end, restarts included.
    took_ms: int
    #: From there until the last undecided transaction was settled.
    settled_after_ms: int
    #: Orders and messages that do not fit together, by the Spark audit.
    disagreements: int
    #: By service downstream: effects that are missing or too many.
    wrong_effects: dict[str, int]


class DemoShape(Shape, frozen=True, kw_only=True):
    """What the demo came to."""

    seed: int
    #: Whether the audit of the transactional run is clean and all services agree.
    is_proven: bool
    plain: DemoRunShape
    transactional: DemoRunShape
    #: The files with everything: a page, and its figures as JSON.
    report: str
    figures: str


class BenchShape(Shape, frozen=True, kw_only=True):
    """A bench program."""

    name: str


class ServeEventShape(Shape, frozen=True, kw_only=True):
    """An event of a broker's process."""

    #: `ready`: clients may connect.
    event: str
    at_ms: int
    #: The name server's HOST:PORT.
    name: str
    #: The broker's HOST:PORT.
    broker: str
    #: HOST:PORT of the pages; null if they are off.
    http: str | None
    pid: int
    #: False: undecided transactions wait until a pipeline runs.
    has_pipeline: bool


class ProcessEventShape(Shape, frozen=True, kw_only=True):
    """An event of `escrowmq up` or `escrowmq pipeline`."""

    at_ms: int
    #: `up`, `broker` or `pipeline`.
    process: str
    #: The words that are printed without `-o json`.
    text: str
    #: The values in the words, by name.
    facts: dict[str, int | str]


#: A row of a query: its columns by name, as the query names them.
LakeRow = dict[str, Any]
