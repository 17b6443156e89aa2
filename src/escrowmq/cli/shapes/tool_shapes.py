"""JSON shapes that commands without a broker print with ``-o json``; see ``broker_shapes.py``."""

from __future__ import annotations

from typing import Any

from escrowmq.cli.shapes.access_shapes import UserShape
from escrowmq.cli.shapes.broker_shapes import Shape

Value = bool | int | float | str


class SettingShape(Shape, frozen=True, kw_only=True):
    """A setting."""

    #: `section.key`.
    key: str
    value: Value
    #: `default`, `file …`, `env …` or `flag`.
    origin: str


class ImportedKeyShape(Shape, frozen=True, kw_only=True):
    """A key of a RocketMQ broker's file."""

    line: int
    key: str
    #: The key's value; null if the key is ignored or unknown: the value may be a secret.
    value: str | None
    #: `mapped`, `refused` (the value is not valid here), `ignored` or `unknown`.
    outcome: str
    #: Our setting as `section.key`; null if the key has none.
    setting: str | None
    #: Value of our setting; null unless the outcome is `mapped`.
    setting_value: Value | None
    #: Why a key is not mapped; for a mapped key, what is different here, or empty.
    reason: str


class CertificateShape(Shape, frozen=True, kw_only=True):
    """A certificate that was made."""

    #: `ca`, `server`, or the name of a client.
    name: str
    #: The file with the certificate, and the file with its key.
    cert: str
    key: str
    expires_at_ms: int


class LedgerMigratedShape(Shape, frozen=True, kw_only=True):
    """A ledger that was migrated or created."""

    uuid: str
    #: Version of the tables before; null if the ledger was just created.
    version_before: int | None
    version: int


class LedgerMarkShape(Shape, frozen=True, kw_only=True):
    """A mark that a sweep left in a ledger: how far into a store's history it swept."""

    #: The store's id.
    store: str
    #: The store's epoch; each start of its broker begins a new one.
    epoch: str
    log_end: int
    half_end: int


class LedgerShape(Shape, frozen=True, kw_only=True):
    """A ledger."""

    uuid: str
    #: `sqlite` or `postgresql`.
    database: str
    #: Version of its tables.
    version: int
    #: The version that this release needs.
    current_version: int
    #: Whether a release without marks may have swept it.
    is_swept_unmarked: bool
    #: Number of rows by outcome.
    rows: dict[str, int]
    marks: list[LedgerMarkShape]


class LedgerSqlShape(Shape, frozen=True, kw_only=True):
    """SQL that creates or updates a ledger."""

    dialect: str
    sql: str


class LakeTableShape(Shape, frozen=True, kw_only=True):
    """A table of the lake."""

    table: str
    rows: int
    files: int
    bytes: int
    #: A date such as 2026-11-16; null if the table has no rows.
    first_day: str | None
    last_day: str | None
    #: Delta's version of the table; null if the table does not exist yet.
    version: int | None


class LakeCompactedShape(Shape, frozen=True, kw_only=True):
    """A table whose small files were merged, or would be in a dry run."""

    table: str
    files_merged: int
    files_made: int


class LakeVacuumedShape(Shape, frozen=True, kw_only=True):
    """A table from which rows and files were removed, or would be in a dry run."""

    table: str
    #: Files of days that are older than `--keep-days`.
    files_deleted: int
    #: Files that no longer belong to a table.
    files_removed: int


class LakeReplayedShape(Shape, frozen=True, kw_only=True):
    """Archived messages that were published again, or would be in a dry run."""

    replay_id: str
    messages: int
    #: Whether an earlier run with this id has published them.
    was_done_before: bool


class StateMigrationShape(Shape, frozen=True, kw_only=True):
    """What ``store migrate`` did."""

    #: The state store that the broker must be set to: `table`, `mapped` or `sql`.
    state_store: str
    #: Ranges of half offsets that were copied and compared; 0 for `table`.
    parts: int
    #: Number of undecided transactions in the store.
    undecided: int


class RepairShape(Shape, frozen=True, kw_only=True):
    """A repair of a store, done or planned in a dry run."""

    #: Whether a repair could do anything.
    is_needed: bool
    #: Whether the store is damaged now.
    is_damaged: bool
    #: Lines about what was found and what a repair does about it.
    plan: list[str]
    #: Lines about what was done.
    done: list[str]
    #: True for a dry run, which changed nothing.
    is_dry_run: bool


class BackupShape(Shape, frozen=True, kw_only=True):
    """A backup that was made or restored, or would be in a dry run."""

    #: For `backup`, where the copy is; for `restore`, the new data directory.
    directory: str
    #: When the backup was made; null in a dry run of `backup`.
    made_at_ms: int | None
    #: The release that made the backup.
    release: str
    #: First log offset in the backup; `log_end` is the offset after the last.
    log_start: int
    log_end: int
    #: Number of files; null in a dry run of `backup`.
    files: int | None
    #: Size of all files; in a dry run of `backup`, of the log alone.
    bytes: int
    #: The users in the restored directory; null for `backup`.
    users: list[UserShape] | None
    #: True for a dry run, which changed nothing.
    is_dry_run: bool


class DemoRunShape(Shape, frozen=True, kw_only=True):
    """One run of the demo."""

    #: Orders to pay; `paid` counts those that were paid.
    orders: int
    paid: int
    messages: int
    #: Number of SIGKILLs sent.
    kills: int
    #: From the first start of the order service to its end, restarts included.
    took_ms: int
    #: From the end of the order service until the last undecided transaction was settled.
    settled_after_ms: int
    #: Orders and messages that do not match, counted by the Spark audit.
    disagreements: int
    #: By downstream service: effects that are missing or duplicated.
    wrong_effects: dict[str, int]


class DemoShape(Shape, frozen=True, kw_only=True):
    """The result of the demo."""

    seed: int
    #: Whether the audit of the transactional run is clean and all services agree.
    is_proven: bool
    plain: DemoRunShape
    transactional: DemoRunShape
    #: Path of the HTML page with all results; `figures` has them as JSON.
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
    #: HOST:PORT for RocketMQ's 5.x clients; null if it is off.
    grpc: str | None
    #: HOST:PORT of the HTTP pages; null if they are off.
    http: str | None
    pid: int
    #: Whether `escrowmq up` started this broker, and so runs a pipeline for it.
    has_pipeline: bool


class ProcessEventShape(Shape, frozen=True, kw_only=True):
    """An event of `escrowmq up` or `escrowmq pipeline`."""

    at_ms: int
    #: `up`, `broker` or `pipeline`.
    process: str
    #: The line that the command prints without `-o json`.
    text: str
    #: The values in the line, by name.
    facts: dict[str, int | str]


#: A row of a query result, by column name.
LakeRow = dict[str, Any]
