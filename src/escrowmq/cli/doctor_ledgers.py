"""Checks of ``escrowmq doctor`` on ledger databases: a message is as durable as its ledger row."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from escrowmq.cli.findings import Finding, information, ok, problem, warning
from escrowmq.client.databases import cutting, opener_of, reading
from escrowmq.client.janitor import FENCE_KEPT_MS
from escrowmq.client.ledger_marks import read_version
from escrowmq.client.ledger_sql import NUMBER_VALUE
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.pipeline.ledger_config import masked

if TYPE_CHECKING:
    from escrowmq.client.links import Link

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


def findings(name: str, url: str) -> Iterator[Finding]:
    """Yield each check of one ledger."""
    check = f"ledger {name}"
    try:
        until_s = time.monotonic() + ANSWER_S
        with opener_of(url)() as link, cutting(link, until_s), reading(link):
            found = list(of_link(check, link, time.time_ns() // 1_000_000))
        yield from found
    except EscrowError as error:
        yield problem(check, f"{error} ({masked(url)})", "until then its transactions wait")
    except ImportError as error:
        yield problem(check, f"driver_missing: {error}", "install the driver that its URL names")
    except Exception as error:  # noqa: BLE001 - any driver's
        why = " ".join(f"{type(error).__name__}: {error}".split())
        advice = "is it running, and has it the tables? SqlLedger(…).create() makes them"
        yield problem(check, f"{why} ({masked(url)})", advice)


def of_link(check: str, link: Link, now_ms: int) -> Iterator[Finding]:
    """Yield the checks of an open database, in one read-only transaction."""
    rows = link.execute(link.dialect.probe).rows
    if len(rows) != 1:
        yield problem(check, "its UUID is gone", "SqlLedger(…).create() makes a new one")
        return
    uuid, is_read_only, is_standby = rows[0]
    yield ok(check, f"{link.dialect.name}, UUID {uuid}")
    yield _version(f"{check} version", link)
    if is_standby or is_read_only:
        yield problem(
            f"{check} primary",
            "this is a standby" if is_standby else "it is read only",
            "name the primary: only there can a transaction be fenced off",
        )
    yield from _settings(f"{check} durability", link)
    yield _janitor(f"{check} janitor", link, now_ms)


def _version(check: str, link: Link) -> Finding:
    try:
        return ok(check, str(read_version(link).version))
    except RequestRefused as refused:
        return problem(check, str(refused), "until then its transactions wait")


def _settings(check: str, link: Link) -> Iterator[Finding]:
    if link.dialect.name == "sqlite":
        yield from _sqlite(check, link)
        return
    weak = False
    for setting, (bad, advice) in _WEAK.items():
        value = link.execute(f"SELECT current_setting('{setting}')").rows[0][0]
        if value == bad:
            weak = True
            yield warning(check, f"{setting} is {value}", advice)
    if not weak:
        yield ok(check, ", ".join(f"{setting} is not {bad}" for setting, (bad, _) in _WEAK.items()))


def _sqlite(check: str, link: Link) -> Iterator[Finding]:
    synchronous = int(link.execute("PRAGMA synchronous").rows[0][0])
    journal = str(link.execute("PRAGMA journal_mode").rows[0][0]).lower()
    if synchronous == _SQLITE_OFF:
        advice = "a power cut can lose committed orders; PRAGMA synchronous = FULL"
        yield warning(check, "synchronous is OFF", advice)
    if journal in {"off", "memory"}:
        advice = "a crash can damage the file; PRAGMA journal_mode = WAL"
        yield warning(check, f"journal_mode is {journal}", advice)
    yield information(
        check,
        f"journal_mode is {journal}; each connection sets its own synchronous",
        "leave it at FULL in your program: nobody else can see it",
    )


def _janitor(check: str, link: Link, now_ms: int) -> Finding:
    asked = [str(ROWS_LOOKED_AT), str(now_ms - DAY_MS), str(now_ms - FENCE_KEPT_MS - DAY_MS)]
    overdue = int(link.execute(_OVERDUE, asked).rows[0][0])
    if not overdue:
        return ok(check, "no old rows")
    return warning(
        check,
        f"{overdue} of the first {ROWS_LOOKED_AT:,} rows should be gone",
        "run a Producer with this ledger: its janitor sweeps; or call SqlLedger(…).sweep",
    )
