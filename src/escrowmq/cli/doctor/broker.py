"""Checks of ``escrowmq doctor`` on a running broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

from escrowmq.cli.admin.ledger_text import (
    LedgersTold,
    advice_for,
    ask_ledgers,
    error_of,
    ledger_line,
    reporter_of,
)
from escrowmq.cli.admin.status import (
    LEDGERS_SHOWN,
    ReportedLag,
    alerts_of,
    backup_of,
    checks_of,
    comparison_of,
    deletion_of,
    disk_of,
    exceeding_of,
    flushes_of,
    gap_of,
    lag_of,
    largest_lag,
    pipeline_of,
    retention_of,
    state_store_of,
    tls_of,
)
from escrowmq.cli.asking import asking, duration
from escrowmq.cli.doctor.data import free_finding
from escrowmq.cli.doctor.findings import DoctorFinding, information, judged, ok, problem, warning
from escrowmq.model.errors import EscrowError
from escrowmq.protocol.native.requests import NativeCode

if TYPE_CHECKING:
    from escrowmq.protocol.native.status_answer import StatusAnswer

ANSWER_MS_SLOW = 1_000
OLD_MS = 3_600_000
LAG_LARGE = 100_000
FLUSH_MS_SLOW = 100
#: Largest difference between the broker's clock and ours that needs no warning. The broker times
#: back-checks by its own clock.
CLOCK_MS_WRONG = 5_000
#: A certificate should be valid for at least this long.
CERTIFICATE_MS_MIN = 30 * 86_400_000
OPEN_FILES_MIN = 4_096


def findings(address: str, *, is_expected: bool) -> Iterator[DoctorFinding]:
    """Yield each check; an absent broker is a problem only if ``is_expected``."""
    try:
        with asking(address) as calls:
            # The first call also opens the connection, so only the second one is timed.
            calls.call(NativeCode.STATUS)
            before_ms = time.time_ns() // 1_000_000
            told = calls.call(NativeCode.STATUS).header
            took_ms = time.time_ns() // 1_000_000 - before_ms
            lag = largest_lag(calls)
            ledgers = ask_ledgers(calls)
    except EscrowError as error:
        if is_expected or error.code != "broker_unreachable":
            yield problem("broker", str(error), "start it with escrowmq up, or correct --broker")
        else:
            yield information(
                "broker",
                f"none at {address}",
                "start one with escrowmq up, or name one with --broker",
            )
        return
    wall_ms = told.wall_ms or told.now_ms
    yield from of_answer(told, lag, took_ms=took_ms, apart_ms=wall_ms - before_ms)
    yield from of_ledgers(ledgers, told.now_ms)


def of_answer(
    told: StatusAnswer, lag: ReportedLag, *, took_ms: int, apart_ms: int
) -> Iterator[DoctorFinding]:
    """Yield the findings in a broker's status answer."""
    yield _broker(told, took_ms)
    ours = version("escrowmq")
    if told.broker_version != ours:
        found = f"the broker has {told.broker_version}, this command {ours}"
        yield warning("versions", found, "use the same release for both")
    yield from _checks(told)
    yield from _transactions(told)
    yield from _catalog(told)
    yield from _storage(told)
    advice = "start more consumers if they are too slow; escrowmq group show has the offsets"
    yield judged("lag", lag_of(lag), (lag.messages > LAG_LARGE, warning, advice))
    if told.groups_paused:
        found = f"{told.groups_paused} get no messages"
        yield information("paused groups", found, "escrowmq group list; escrowmq group resume")
    if told.alerts_last_error:
        advice = "check alerts.url and alerts.command, and whether the broker reaches them"
        yield warning("alerts", alerts_of(told), advice)
    yield _backup(told)
    if told.tls:
        yield _tls(told)
    if told.state_store_state:
        yield _state_store(told)
    advice = "raise limits.KIND_max, or find what makes new names; unused ones expire"
    names = told.names_near or "far from their limits"
    yield judged("names", names, (told.names_near, warning, advice))
    yield _clock(apart_ms, took_ms)
    yield _store_time(told)
    if 0 < told.open_files_max < OPEN_FILES_MIN:
        found = f"the broker may open {told.open_files_max}"
        yield warning("open files", found, "raise LimitNOFILE of its service, or ulimit -n")


def of_ledgers(told: LedgersTold, now_ms: int) -> Iterator[DoctorFinding]:
    """Yield the findings in the reports of pipelines and of the broker about their ledgers."""
    for row in told.reported:
        check = f"{reporter_of(row)}'s ledger {row.name}"
        if row.is_reachable:
            yield ok(check, ledger_line(row, now_ms))
        else:
            found = problem if row.undecided or not row.uuid else warning
            yield found(check, f"unreachable: {error_of(row)}", advice_for(row))
    # Until every configured database has told its UUID, one of these may be its ledger.
    is_known = told.is_reported and not told.unnamed
    missing = [row for row in told.rows if not row.name] if is_known else []
    for row in missing[:LEDGERS_SHOWN]:
        yield problem(
            "ledger not configured",
            f"{row.undecided} undecided transactions name {row.uuid}",
            "escrowmq txn explain ID says what to do",
        )


def _broker(told: StatusAnswer, took_ms: int) -> DoctorFinding:
    running = duration(told.now_ms - told.started_at_ms)
    found = f"{told.broker} at {told.broker_address} is ready, running for {running}"
    if took_ms > ANSWER_MS_SLOW:
        advice = "check the load of its machine and the network"
        return warning("broker", f"{found}, but took {took_ms} ms to answer", advice)
    return ok("broker", found)


def _checks(told: StatusAnswer) -> Iterator[DoctorFinding]:
    yield judged(
        "checks",
        checks_of(told),
        (
            told.checker == "none",
            warning,
            "set transaction.checked_by to auto, and start the broker again",
        ),
        (
            told.checker == "broker" and told.round_error,
            warning,
            "the broker's log has the error; the broker tries again",
        ),
    )
    found, _, advice = pipeline_of(told).partition("; ")
    is_away = told.pipeline_away_since_ms
    yield judged(
        "pipeline",
        found,
        (is_away and told.undecided and told.checker != "broker", problem, advice),
        (is_away, warning, advice),
        (told.undecided_without_ledger, problem, "see its ledgers below"),
    )


def _transactions(told: StatusAnswer) -> Iterator[DoctorFinding]:
    age_ms = told.oldest_undecided_age_ms
    yield judged(
        "undecided",
        f"{told.undecided}, the oldest for {duration(age_ms)}" if told.undecided else "none",
        (
            told.undecided and age_ms > OLD_MS,
            warning,
            "escrowmq txn list, then txn explain the oldest",
        ),
    )
    if told.undecided_without_producer:
        yield warning(
            "producers",
            f"{told.undecided_without_producer} undecided whose producers are all offline",
            "start their producers, or see escrowmq txn list --nobody-online",
        )
    yield judged(
        "parked",
        f"{told.parked} wait for a person" if told.parked else "none",
        (
            told.parked,
            warning,
            "escrowmq txn list --states parked, then commit, rollback or resume each",
        ),
    )
    if told.compared_differences:
        yield problem(
            "comparison",
            comparison_of(told),
            "the log is right: run escrowmq audit, then escrowmq store check on a stopped broker",
        )
    contradicted = f"{told.contradictions}: the opposite decision came after the first one"
    yield judged(
        "contradictions",
        contradicted if told.contradictions else "none",
        (
            told.contradictions,
            problem,
            "the broker's log names them; escrowmq audit compares everything",
        ),
    )


def _tls(told: StatusAnswer) -> DoctorFinding:
    left_ms = told.tls_expires_at_ms - (told.wall_ms or told.now_ms)
    has_certificate = told.tls_expires_at_ms > 0
    return judged(
        "TLS",
        tls_of(told),
        (
            has_certificate and left_ms <= 0,
            problem,
            "clients that verify it are refused: replace the files, no restart is needed",
        ),
        (told.tls_error, warning, "correct the files; the last good ones serve until then"),
        (
            has_certificate and left_ms < CERTIFICATE_MS_MIN,
            warning,
            "renew it, and put the new files in the place of the old ones; no restart is needed",
        ),
    )


def _catalog(told: StatusAnswer) -> Iterator[DoctorFinding]:
    if told.offsets_lost:
        advice = "groups without an offset begin at the start of their queues; see recovery.md"
        yield warning("consumer offsets", f"lost before this start: {told.offsets_lost}", advice)
    if told.topics_found:
        found = f"rebuilt from their queues alone: {told.topics_found}"
        yield warning("topics", found, "compare their settings: escrowmq topic list")


def _storage(told: StatusAnswer) -> Iterator[DoctorFinding]:
    if told.disk == "all":
        yield free_finding(told.disk_free_bytes)
    else:
        advice = "free space on the broker's disk"
        yield judged("disk space", disk_of(told), (told.disk, problem, advice))
    advice = "get undecided transactions decided, or raise store.retention_bytes"
    yield judged(
        "retention",
        retention_of(told),
        (
            told.retention == "waits_for_room",
            problem,
            "free space on the broker's disk, or get undecided transactions decided",
        ),
        (
            told.retention == "waits_for_permission",
            warning,
            "see escrowmq clock show and the broker's log",
        ),
        (exceeding_of(told) or told.retention.startswith("waits_for_"), warning, advice),
    )
    yield judged(
        "flushes",
        flushes_of(told),
        (
            told.durability == "os",
            warning,
            "a power cut can lose what was acknowledged; set store.durability=fsync",
        ),
        (
            told.flush_ms_p99 > FLUSH_MS_SLOW,
            warning,
            "each message waits for a flush: use a faster disk",
        ),
    )


def _state_store(told: StatusAnswer) -> DoctorFinding:
    return judged(
        "state store",
        state_store_of(told),
        (
            told.state_store_state in {"away", "refused"},
            problem,
            "correct what the error names; new half messages are refused until then",
        ),
        (
            told.state_store_disagreed,
            warning,
            "find what else writes to the state store; the log won",
        ),
    )


def _backup(told: StatusAnswer) -> DoctorFinding:
    return judged(
        "backup",
        backup_of(told),
        (
            told.backup_failures_in_a_row,
            problem,
            "correct what the error names; the broker tries again",
        ),
        (
            told.backup_overdue_ms,
            warning,
            "check that the broker runs at the scheduled time, and how long a backup takes",
        ),
        (
            told.backup in {"", "off"},
            information,
            "set backup.directory, or run escrowmq backup from cron",
        ),
    )


def _clock(apart_ms: int, took_ms: int) -> DoctorFinding:
    # The broker read its clock at an unknown moment while we waited, so allow for that time.
    beyond_ms = max(apart_ms - took_ms, -apart_ms, 0)
    advice = "synchronize the clocks of both machines (NTP)"
    found = f"{duration(beyond_ms)} apart from the broker's"
    return judged("clock", found, (beyond_ms > CLOCK_MS_WRONG, warning, advice))


def _store_time(told: StatusAnswer) -> DoctorFinding:
    if told.deletion_waits and not told.is_clock_doubtful:
        return information("store time", f"deletion {deletion_of(told)}", "nothing to do")
    advice = "correct the broker's clock; if it is right: escrowmq clock confirm"
    return judged("store time", gap_of(told), (told.is_clock_doubtful, problem, advice))
