"""Checks of ``escrowmq doctor`` on ledger databases: a message is as durable as its ledger row."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from escrowmq.cli.doctor.findings import DoctorFinding, information, ok, problem, warning
from escrowmq.client.database.databases import cutting, opener_of, reading
from escrowmq.client.database.ledger_sql import NUMBER_VALUE
from escrowmq.client.ledger.janitor import FENCE_KEPT_MS
from escrowmq.client.ledger.marks import read_version
from escrowmq.look_up.ledger_config import masked
from escrowmq.model.errors import EscrowError, RequestRefused

if TYPE_CHECKING:
    from escrowmq.client.database.connections import DatabaseConnection

ANSWER_S = 10.0
DAY_MS = 24 * 3_600_000
#: The most rows that are examined. Ids are random, so the first rows represent all of them.
ROWS_LOOKED_AT = 100_000

_OVERDUE = (
    "SELECT count(*) FROM (SELECT outcome, written_at_ms FROM escrowmq_ledger"  # noqa: S608 -- only constants
    f" ORDER BY transaction_id LIMIT {NUMBER_VALUE}) AS looked_at"
    f" WHERE (outcome = 'committed' AND written_at_ms < {NUMBER_VALUE})"
    f" OR (outcome = 'rolled_back' AND written_at_ms < {NUMBER_VALUE})"
)

#: PostgreSQL: by setting, the dangerous value, and what it risks.
_WEAK: Mapping[str, tuple[str, str]] = {
    "fsync": ("off", "a power cut can lose or damage everything; set fsync = on"),
    "synchronous_commit": (
        "off",
        "a crash can lose committed orders whose messages went out; set synchronous_commit = on",
    ),
    "full_page_writes": ("off", "a power cut can damage pages; set full_page_writes = on"),
}
_SQLITE_OFF = 0


def findings(name: str, url: str) -> Iterator[DoctorFinding]:
    """Yield each check of one ledger."""
    check = f"ledger {name}"
    try:
        until_s = time.monotonic() + ANSWER_S
        with opener_of(url)() as connection, cutting(connection, until_s), reading(connection):
            found = list(of_connection(check, connection, time.time_ns() // 1_000_000))
        yield from found
    except EscrowError as error:
        yield problem(
            check, f"{error} ({masked(url)})", "its transactions wait until this is corrected"
        )
    except ImportError as error:
        yield problem(check, f"driver_missing: {error}", "install the driver that its URL names")
    except Exception as error:  # noqa: BLE001 - any driver's
        why = " ".join(f"{type(error).__name__}: {error}".split())
        advice = "check that it runs and has the tables; SqlLedger(…).create() makes them"
        yield problem(check, f"{why} ({masked(url)})", advice)


def of_connection(
    check: str, connection: DatabaseConnection, now_ms: int
) -> Iterator[DoctorFinding]:
    """Yield the checks of an open database, in the read transaction that the caller began."""
    rows = connection.execute(connection.dialect.probe).rows
    if len(rows) != 1:
        yield problem(check, "its UUID is gone", "SqlLedger(…).create() makes a new one")
        return
    uuid, is_read_only, is_standby = rows[0]
    yield ok(check, f"{connection.dialect.name}, UUID {uuid}")
    yield _version(f"{check} version", connection)
    if is_standby or is_read_only:
        yield problem(
            f"{check} primary",
            "this is a standby" if is_standby else "it is read only",
            "name the primary: a fence can be written only there",
        )
    yield from _settings(f"{check} durability", connection)
    yield _janitor(f"{check} janitor", connection, now_ms)


def _version(check: str, connection: DatabaseConnection) -> DoctorFinding:
    try:
        return ok(check, str(read_version(connection).version))
    except RequestRefused as refused:
        return problem(check, str(refused), "its transactions wait until this is corrected")


def _settings(check: str, connection: DatabaseConnection) -> Iterator[DoctorFinding]:
    if connection.dialect.name == "sqlite":
        yield from _sqlite(check, connection)
        return
    weak = False
    for setting, (bad, advice) in _WEAK.items():
        value = connection.execute(f"SELECT current_setting('{setting}')").rows[0][0]
        if value == bad:
            weak = True
            yield warning(check, f"{setting} is {value}", advice)
    if not weak:
        yield ok(check, ", ".join(f"{setting} is not {bad}" for setting, (bad, _) in _WEAK.items()))


def _sqlite(check: str, connection: DatabaseConnection) -> Iterator[DoctorFinding]:
    synchronous = int(connection.execute("PRAGMA synchronous").rows[0][0])
    journal = str(connection.execute("PRAGMA journal_mode").rows[0][0]).lower()
    if synchronous == _SQLITE_OFF:
        advice = "a power cut can lose committed orders; PRAGMA synchronous = FULL"
        yield warning(check, "synchronous is OFF", advice)
    if journal in {"off", "memory"}:
        advice = "a crash can damage the file; PRAGMA journal_mode = WAL"
        yield warning(check, f"journal_mode is {journal}", advice)
    yield information(
        check,
        f"journal_mode is {journal}; each connection sets its own synchronous",
        "leave it at FULL in your program: this command cannot see it",
    )


def _janitor(check: str, connection: DatabaseConnection, now_ms: int) -> DoctorFinding:
    asked = [str(ROWS_LOOKED_AT), str(now_ms - DAY_MS), str(now_ms - FENCE_KEPT_MS - DAY_MS)]
    overdue = int(connection.execute(_OVERDUE, asked).rows[0][0])
    if not overdue:
        return ok(check, "no old rows")
    return warning(
        check,
        f"{overdue} of the first {ROWS_LOOKED_AT:,} rows are past their time",
        "run a Producer with this ledger, whose janitor deletes them, or call SqlLedger(…).sweep",
    )
