"""What the doctor finds, and the exit code that follows."""

from __future__ import annotations

import csv
import io
import json
import resource
import sqlite3
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from escrowmq.cli.admin.ledger_text import LedgersTold
from escrowmq.cli.admin.status import ReportedLag
from escrowmq.cli.doctor import broker as doctor_broker
from escrowmq.cli.doctor import data, ledgers, machine
from escrowmq.cli.doctor.findings import DoctorFinding, Severity
from escrowmq.cli.main import main
from escrowmq.client.database.connections import SqliteConnection
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.protocol.native.ledgers import LedgerRow
from escrowmq.store.disk.lock import DirectoryLock
from escrowmq.store.recovery.format import VERSION
from escrowmq.testing import InProcessBroker
from tests.unit.cli.answers import answered

Run = Callable[..., list[dict[str, str]]]
NOW_MS = 1_800_000_000_000
DAY_MS = 24 * 3_600_000


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, code: int = 0) -> list[dict[str, str]]:
        with pytest.raises(SystemExit) as left:
            main(["doctor", "-o", "json", *arguments])
        told = capsys.readouterr()
        assert left.value.code == code, told
        found: list[dict[str, str]] = json.loads(told.out)
        return found

    return run


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as running:
        yield running


def levels(found: list[dict[str, str]]) -> dict[str, str]:
    return {one["check"]: one["level"] for one in found}


def by_check(findings: Iterator[DoctorFinding]) -> dict[str, DoctorFinding]:
    return {finding.check: finding for finding in findings}


def test_a_running_broker_is_looked_at(broker: InProcessBroker, run: Run) -> None:
    found = levels(run("--broker", broker.address))
    assert found["broker"] == found["parked"] == found["lag"] == found["clock"] == "ok"
    assert found["pipeline"] == found["flushes"] == "warning"
    # With --strict, warnings also make the command fail.
    run("--broker", broker.address, "--strict", code=1)


def test_where_no_broker_is_expected_its_absence_is_information(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("escrowmq.cli.doctor.command.DEFAULT_BROKER", "127.0.0.1:1")
    assert levels(run())["broker"] == "information"
    assert levels(run("--broker", "127.0.0.1:1", code=1))["broker"] == "problem"


def test_every_finding_is_a_line_for_people_and_a_row_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--broker", "127.0.0.1:1"])
    lines = capsys.readouterr().out.splitlines()
    assert all(line.split()[0] in set(Severity) for line in lines)
    with pytest.raises(SystemExit):
        main(["doctor", "--broker", "127.0.0.1:1", "-o", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["level"] for row in rows] == [line.split()[0] for line in lines]


def test_a_missing_extra_is_information() -> None:
    found = machine.extra_finding("odd", ("no-such-package", "typer"), "nothing")
    assert (found.level, found.found) == (Severity.INFORMATION, "not installed: no-such-package")
    assert 'pip install "escrowmq[odd]"' in found.advice


@pytest.mark.parametrize(
    ("hard_max", "level"),
    [(1_024, Severity.WARNING), (65_536, Severity.OK), (resource.RLIM_INFINITY, Severity.OK)],
)
def test_few_open_files_are_a_warning(hard_max: int, level: Severity) -> None:
    assert machine.open_files_finding(hard_max).level is level


# Answers of a broker.


@pytest.mark.parametrize(
    ("known", "check", "level"),
    [
        ({"broker_version": "0.0.0"}, "versions", Severity.WARNING),
        ({"pipeline_away_since_ms": 1}, "pipeline", Severity.WARNING),
        ({"pipeline_away_since_ms": 1, "undecided": 1}, "pipeline", Severity.PROBLEM),
        # The broker checks instead.
        (
            {"pipeline_away_since_ms": 1, "undecided": 1, "checker": "broker"},
            "pipeline",
            Severity.WARNING,
        ),
        ({}, "pipeline", Severity.OK),
        ({}, "checks", Severity.OK),
        ({"checker": "broker", "round_ended_at_ms": 1}, "checks", Severity.OK),
        ({"checker": "broker", "round_error": "disk full"}, "checks", Severity.WARNING),
        # An error from the time before the pipeline came.
        ({"checker": "pipeline", "round_error": "disk full"}, "checks", Severity.OK),
        ({"checker": "none"}, "checks", Severity.WARNING),
        ({"undecided": 1}, "undecided", Severity.OK),
        ({"undecided": 1, "oldest_undecided_age_ms": DAY_MS}, "undecided", Severity.WARNING),
        ({"undecided_without_producer": 1}, "producers", Severity.WARNING),
        ({"parked": 1}, "parked", Severity.WARNING),
        ({"contradictions": 1}, "contradictions", Severity.PROBLEM),
        ({"compared_differences": 1}, "comparison", Severity.PROBLEM),
        ({"disk": "no_messages"}, "disk space", Severity.PROBLEM),
        ({"disk": "all", "disk_free_bytes": 1}, "disk space", Severity.WARNING),
        ({"disk": "all", "disk_free_bytes": 2**40}, "disk space", Severity.OK),
        # A release that does not report it.
        ({}, "disk space", Severity.OK),
        ({}, "retention", Severity.OK),
        ({"retention": "idle", "undecided_bytes": 9}, "retention", Severity.OK),
        ({"retention": "waits_for_room"}, "retention", Severity.PROBLEM),
        ({"retention": "waits_for_decisions"}, "retention", Severity.WARNING),
        ({"retention": "waits_for_permission"}, "retention", Severity.WARNING),
        (
            {"retention": "idle", "undecided_bytes": 9, "retention_bytes": 8},
            "retention",
            Severity.WARNING,
        ),
        ({"durability": "os"}, "flushes", Severity.WARNING),
        ({"flush_ms_median": 1.0, "flush_ms_p99": 250.0}, "flushes", Severity.WARNING),
        ({"flush_ms_median": 1.0, "flush_ms_p99": 9.0}, "flushes", Severity.OK),
        ({"open_files_max": 256}, "open files", Severity.WARNING),
        ({"offsets_lost": "meta.db was missing"}, "consumer offsets", Severity.WARNING),
        ({"topics_found": "orders"}, "topics", Severity.WARNING),
    ],
)
def test_each_state_of_a_broker_has_its_level(
    known: dict[str, Any], check: str, level: Severity
) -> None:
    told = answered(**{"broker_version": version("escrowmq"), **known})
    found = by_check(doctor_broker.of_answer(told, ReportedLag(), took_ms=1, apart_ms=0))
    assert found[check].level is level
    assert bool(found[check].advice) is (level is not Severity.OK)


def test_the_checker_its_start_and_its_results_are_told() -> None:
    told = answered(
        checker="broker",
        checker_since_ms=60_000,
        round_ended_at_ms=999_000,
        round_did="asked=3 committed=1",
    )
    found = by_check(doctor_broker.of_answer(told, ReportedLag(), took_ms=1, apart_ms=0))
    assert "by the broker since 1970-01-01 00:01:00" in found["checks"].found
    assert "1 s ago: asked=3 committed=1" in found["checks"].found


@pytest.mark.parametrize(
    ("row", "check", "level"),
    [
        ({"pipeline": "broker", "is_reachable": True}, "broker's ledger shop", Severity.OK),
        ({"pipeline": "host/1", "is_reachable": True}, "pipeline's ledger shop", Severity.OK),
        # Neither reaches it.
        ({"pipeline": "broker", "undecided": 1}, "broker's ledger shop", Severity.PROBLEM),
        ({"pipeline": "broker"}, "broker's ledger shop", Severity.WARNING),
    ],
)
@pytest.mark.parametrize("pipelines", [0, 1])
def test_a_ledger_that_neither_broker_nor_pipeline_reaches_is_told(
    row: dict[str, Any], check: str, level: Severity, pipelines: int
) -> None:
    rows = [LedgerRow(**{"name": "shop", "uuid": "u", "error": "ledger_unreachable", **row})]
    found = by_check(doctor_broker.of_ledgers(LedgersTold(pipelines, rows), NOW_MS))
    assert found[check].level is level


def test_with_the_brokers_ledgers_alone_a_ledger_that_is_not_configured_is_told() -> None:
    rows = [
        LedgerRow(name="shop", uuid="u", pipeline="broker", is_reachable=True),
        LedgerRow(uuid="other", undecided=1),
    ]
    found = by_check(doctor_broker.of_ledgers(LedgersTold(0, rows), NOW_MS))
    assert found["ledger not configured"].level is Severity.PROBLEM


@pytest.mark.parametrize(
    ("took_ms", "apart_ms", "check", "level"),
    [
        (5_000, 0, "broker", Severity.WARNING),
        (1, 60_000, "clock", Severity.WARNING),
        (1, -60_000, "clock", Severity.WARNING),
        # The broker may have read its clock at any time during the 9 s wait.
        (9_000, 8_000, "clock", Severity.OK),
    ],
)
def test_slow_answers_and_clocks_are_told_apart(
    took_ms: int, apart_ms: int, check: str, level: Severity
) -> None:
    found = by_check(
        doctor_broker.of_answer(answered(), ReportedLag(), took_ms=took_ms, apart_ms=apart_ms)
    )
    assert found[check].level is level


def test_a_large_lag_is_a_warning() -> None:
    lag = ReportedLag(1_000_000, "g", "t")
    found = by_check(doctor_broker.of_answer(answered(), lag, took_ms=1, apart_ms=0))
    assert found["lag"].level is Severity.WARNING


# A data directory.


def test_a_data_directory_is_looked_at_while_it_is_served_and_after(tmp_path: Path) -> None:
    with InProcessBroker(data=tmp_path):
        assert "served by process" in by_check(data.findings(tmp_path))["data directory"].found
    found = by_check(data.findings(tmp_path))
    assert "no process serves it" in found["data directory"].found
    assert found["store"].found == f"format version {VERSION}"
    assert found["checkpoint"].level is Severity.OK


def test_a_store_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    with InProcessBroker(data=tmp_path):
        pass
    (tmp_path / "store" / "checkpoint").unlink()
    assert by_check(data.findings(tmp_path))["checkpoint"].level is Severity.WARNING
    (tmp_path / "store" / "format").write_text('{"version": 99}')
    found = by_check(data.findings(tmp_path))["store"]
    assert (found.level, "store_version_unknown" in found.found) == (Severity.PROBLEM, True)


def test_a_data_directory_that_is_not_there_or_empty_is_information(tmp_path: Path) -> None:
    (found,) = data.findings(tmp_path / "none")
    assert found.level is Severity.INFORMATION
    with DirectoryLock(tmp_path):
        assert by_check(data.findings(tmp_path))["store"].level is Severity.INFORMATION


def test_little_room_is_a_warning() -> None:
    assert data.free_finding(1).level is Severity.WARNING
    assert data.free_finding(2**40).level is Severity.OK


# Ledgers.


def test_the_ledgers_of_the_config_are_looked_at(run: Run, tmp_path: Path) -> None:
    SqlLedger(f"sqlite:///{tmp_path}/shop.db").create()
    file = tmp_path / "escrowmq.toml"
    file.write_text(
        f"[ledger.shop]\nurl = 'sqlite:///{tmp_path}/shop.db'\n"
        f"[ledger.gone]\nurl = 'sqlite:///{tmp_path}/gone.db'\n"
    )
    found = levels(run("--config", str(file), code=1))
    assert found["ledger shop"] == found["ledger shop janitor"] == "ok"
    assert found["ledger shop durability"] == "information"
    assert found["ledger gone"] == "problem"
    # The check does not create the database file.
    assert not (tmp_path / "gone.db").exists()


@pytest.mark.parametrize("url", ["mysql://h/d", "nonsense"])
def test_a_database_that_is_not_supported_is_a_problem(run: Run, url: str) -> None:
    found = run("--set", f"ledger.a.url={url}", code=1)
    assert [one["level"] for one in found if one["check"] == "config"] == ["problem"]


def looked_at(connection: sqlite3.Connection) -> dict[str, list[Severity]]:
    found: dict[str, list[Severity]] = {}
    for finding in ledgers.of_connection("ledger", SqliteConnection(connection), NOW_MS):
        found.setdefault(finding.check, []).append(finding.level)
    return found


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    SqlLedger(f"sqlite:///{tmp_path}/shop.db").create()
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    yield connection
    connection.close()


def test_weak_settings_are_warnings(shop: sqlite3.Connection) -> None:
    shop.execute("PRAGMA synchronous = OFF")
    shop.execute("PRAGMA journal_mode = OFF")
    expected = [Severity.WARNING, Severity.WARNING, Severity.INFORMATION]
    assert looked_at(shop)["ledger durability"] == expected


def test_a_database_that_cannot_be_written_is_a_problem(shop: sqlite3.Connection) -> None:
    shop.execute("PRAGMA query_only = ON")
    assert looked_at(shop)["ledger primary"] == [Severity.PROBLEM]


def test_rows_that_the_janitor_left_are_a_warning(shop: sqlite3.Connection) -> None:
    def insert(transaction_id: str, outcome: str, days: int) -> None:
        row = (transaction_id, "g", outcome, NOW_MS - days * DAY_MS)
        shop.execute("INSERT INTO escrowmq_ledger VALUES (?, ?, ?, ?)", row)

    insert("young", "committed", 0)
    # The janitor keeps a fence for a week.
    insert("fence", "rolled_back", 7)
    assert looked_at(shop)["ledger janitor"] == [Severity.OK]
    insert("old", "committed", 2)
    assert looked_at(shop)["ledger janitor"] == [Severity.WARNING]


def test_a_ledger_without_its_uuid_is_a_problem(shop: sqlite3.Connection) -> None:
    shop.execute("DELETE FROM escrowmq_ledger_id")
    assert looked_at(shop) == {"ledger": [Severity.PROBLEM]}


def test_a_server_that_is_not_there_is_a_problem(run: Run) -> None:
    found = run("--set", "ledger.a.url=postgresql://127.0.0.1:1/x", code=1)
    assert levels(found)["ledger a"] == "problem"


def test_a_python_of_spark_that_lacks_us_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = machine.spark_python_findings()
    assert found.level is Severity.INFORMATION
    assert "escrowmq.spark" in found.advice
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    (found,) = machine.spark_python_findings()
    assert found.level is Severity.OK
