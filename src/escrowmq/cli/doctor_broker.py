"""Checks of ``escrowmq doctor`` on a running broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

from escrowmq.cli.asking import asking, duration
from escrowmq.cli.clock_text import deletion_of, gap_of
from escrowmq.cli.doctor_data import free_finding
from escrowmq.cli.findings import Finding, information, ok, problem, warning
from escrowmq.cli.lag import Lag, largest_lag
from escrowmq.cli.ledger_text import (
    LedgersTold,
    advice_for,
    ask_ledgers,
    error_of,
    ledger_line,
)
from escrowmq.cli.status import (
    LEDGERS_SHOWN,
    alerts_of,
    backup_of,
    disk_of,
    exceeding_of,
    flushes_of,
    lag_of,
    pipeline_of,
    retention_of,
)
from escrowmq.model.errors import EscrowError

if TYPE_CHECKING:
    from escrowmq.protocol.own_headers import StatusAnswer

ANSWER_MS_SLOW = 1_000
OLD_MS = 3_600_000
LAG_LARGE = 100_000
FLUSH_MS_SLOW = 100
#: The broker times back-checks by its own clock, so a larger difference is worth a warning.
CLOCK_MS_WRONG = 5_000
OPEN_FILES_MIN = 4_096


def findings(address: str, *, is_expected: bool) -> Iterator[Finding]:
    """Yield each check; an absent broker is a problem only if ``is_expected``."""
    from escrowmq.protocol.own import OwnCode

    try:
        with asking(address) as calls:
            # The first call also opens the connection, so only the second one is timed.
            calls.call(OwnCode.STATUS)
            before_ms = time.time_ns() // 1_000_000
            told = calls.call(OwnCode.STATUS).header
            took_ms = time.time_ns() // 1_000_000 - before_ms
            lag = largest_lag(calls)
            ledgers = ask_ledgers(calls)
    except EscrowError as error:
        if is_expected or error.code != "broker_unreachable":
            yield problem("broker", str(error), "start it with escrowmq up, or mend --broker")
        else:
            yield information(
                "broker", f"none at {address}", "start one with escrowmq up, or say --broker"
            )
        return
    wall_ms = told.wall_ms or told.now_ms
    yield from of_answer(told, lag, took_ms=took_ms, apart_ms=wall_ms - before_ms)
    yield from of_ledgers(ledgers, told.now_ms)


def of_answer(told: StatusAnswer, lag: Lag, *, took_ms: int, apart_ms: int) -> Iterator[Finding]:
    """Yield the findings in a broker's status answer."""
    yield _broker(told, took_ms)
    ours = version("escrowmq")
    if told.broker_version != ours:
        found = f"the broker has {told.broker_version}, this command {ours}"
        yield warning("versions", found, "use the same release for both")
    yield _pipeline(told)
    yield _undecided(told)
    if told.undecided_without_producer:
        yield warning(
            "producers",
            f"{told.undecided_without_producer} undecided with nobody to ask",
            "start their producers, or see escrowmq txn list --nobody-online",
        )
    yield _parked(told)
    yield _contradictions(told)
    yield from _catalog(told)
    yield _disk(told)
    yield _retention(told)
    yield _flushes(told)
    if lag.messages > LAG_LARGE:
        yield warning("lag", lag_of(lag), "are there enough consumers? escrowmq group show")
    else:
        yield ok("lag", lag_of(lag))
    if told.groups_paused:
        found = f"{told.groups_paused} get no messages"
        yield information("paused groups", found, "escrowmq group list; escrowmq group resume")
    yield from _watch(told)
    yield _names(told)
    yield _clock(apart_ms, took_ms)
    yield _store_time(told)
    if 0 < told.open_files_max < OPEN_FILES_MIN:
        found = f"the broker may have {told.open_files_max}"
        yield warning("open files", found, "raise LimitNOFILE of its service, or ulimit -n")


def of_ledgers(told: LedgersTold, now_ms: int) -> Iterator[Finding]:
    """Yield the findings in the pipeline's report about its ledgers."""
    for row in told.reported:
        check = f"pipeline's ledger {row.name}"
        if row.is_reachable:
            yield ok(check, ledger_line(row, now_ms))
        else:
            found = problem if row.undecided or not row.uuid else warning
            yield found(check, f"unreachable: {error_of(row)}", advice_for(row))
    # Until every configured database has told its UUID, one of these may be its ledger.
    is_known = told.pipelines and not told.unnamed
    missing = [row for row in told.rows if not row.name] if is_known else []
    for row in missing[:LEDGERS_SHOWN]:
        yield problem(
            "ledger not configured",
            f"{row.undecided} undecided transactions name {row.uuid}",
            "escrowmq txn explain one of them says what to do",
        )


def _broker(told: StatusAnswer, took_ms: int) -> Finding:
    running = duration(told.now_ms - told.started_at_ms)
    found = f"{told.broker} at {told.broker_address} is ready, running for {running}"
    if took_ms > ANSWER_MS_SLOW:
        advice = "is the machine overloaded, or the network slow?"
        return warning("broker", f"{found}, but took {took_ms} ms to answer", advice)
    return ok("broker", found)


def _pipeline(told: StatusAnswer) -> Finding:
    found, _, advice = pipeline_of(told).partition("; ")
    if not told.pipeline_away_since_ms and told.undecided_without_ledger:
        return problem("pipeline", found, "see its ledgers below")
    if not told.pipeline_away_since_ms:
        return ok("pipeline", found)
    return (problem if told.undecided else warning)("pipeline", found, advice)


def _undecided(told: StatusAnswer) -> Finding:
    if not told.undecided:
        return ok("undecided", "none")
    found = f"{told.undecided}, the oldest for {duration(told.oldest_undecided_age_ms)}"
    if told.oldest_undecided_age_ms > OLD_MS:
        return warning("undecided", found, "escrowmq txn list, then txn explain the oldest")
    return ok("undecided", found)


def _parked(told: StatusAnswer) -> Finding:
    if not told.parked:
        return ok("parked", "none")
    advice = "escrowmq txn list --states parked, then commit, rollback or resume each"
    return warning("parked", f"{told.parked} wait for a person", advice)


def _contradictions(told: StatusAnswer) -> Finding:
    if not told.contradictions:
        return ok("contradictions", "none")
    return problem(
        "contradictions",
        f"{told.contradictions}: somebody said the opposite of what was decided",
        "the broker's log names them; escrowmq audit compares everything",
    )


def _catalog(told: StatusAnswer) -> Iterator[Finding]:
    if told.offsets_lost:
        advice = "groups without an offset begin at the start of their queues; see recovery.md"
        yield warning("consumer offsets", f"lost before this start: {told.offsets_lost}", advice)
    if told.topics_found:
        found = f"made of their queues alone: {told.topics_found}"
        yield warning("topics", found, "compare their settings: escrowmq topic list")


def _disk(told: StatusAnswer) -> Finding:
    if told.disk in {"", "all"}:
        return free_finding(told.disk_free_bytes) if told.disk else ok("disk space", "unknown")
    return problem("disk space", disk_of(told), "make room on the broker's disk")


def _retention(told: StatusAnswer) -> Finding:
    found = retention_of(told)
    if told.retention == "waits_for_room":
        advice = "make room on the broker's disk, or have undecided transactions settled"
        return problem("retention", found, advice)
    if exceeding_of(told) or told.retention.startswith("waits_for_"):
        advice = "have undecided transactions settled; or raise store.retention_bytes"
        if told.retention == "waits_for_permission":
            advice = "see what the broker's log says of its clock"
        return warning("retention", found, advice)
    return ok("retention", found)


def _flushes(told: StatusAnswer) -> Finding:
    found = flushes_of(told)
    if told.durability == "os":
        advice = "a power cut can lose what was acknowledged; set store.durability=fsync"
        return warning("flushes", found, advice)
    if told.flush_ms_p99 > FLUSH_MS_SLOW:
        return warning("flushes", found, "each message waits for one: use a faster disk")
    return ok("flushes", found)


def _watch(told: StatusAnswer) -> Iterator[Finding]:
    if told.alerts_last_error:
        advice = "see alerts.url and alerts.command, and whether this machine reaches them"
        yield warning("alerts", alerts_of(told), advice)
    found = backup_of(told)
    if told.backup_failures_in_a_row:
        yield problem("backup", found, "mend what the error names; the broker tries again")
    elif told.backup_overdue_ms:
        yield warning("backup", found, "does the broker run long enough, and fast enough?")
    elif told.backup in {"", "off"}:
        advice = "set backup.directory, or run escrowmq backup from cron"
        yield information("backup", found, advice)
    else:
        yield ok("backup", found)


def _names(told: StatusAnswer) -> Finding:
    if not told.names_near:
        return ok("names", "far from their limits")
    advice = "raise limits.KIND_max, or find what makes new names; unused ones expire"
    return warning("names", told.names_near, advice)


def _clock(apart_ms: int, took_ms: int) -> Finding:
    # The broker read its clock at an unknown moment while we waited, so allow for that time.
    beyond_ms = max(apart_ms - took_ms, -apart_ms, 0)
    if beyond_ms > CLOCK_MS_WRONG:
        found = f"{duration(beyond_ms)} apart from the broker's"
        return warning("clock", found, "have both machines keep time (NTP)")
    return ok("clock", f"{duration(beyond_ms)} apart from the broker's")


def _store_time(told: StatusAnswer) -> Finding:
    if told.is_clock_doubtful:
        advice = "set the broker's clock right, or escrowmq clock confirm if it is"
        return problem("store time", gap_of(told), advice)
    if told.deletion_waits:
        return information("store time", f"deletion {deletion_of(told)}", "nothing to do")
    return ok("store time", gap_of(told))
