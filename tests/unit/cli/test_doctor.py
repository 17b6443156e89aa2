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

from escrowmq.cli import doctor_broker, doctor_data, doctor_ledgers, doctor_machine
from escrowmq.cli.findings import Finding, Level
from escrowmq.cli.lag import Lag
from escrowmq.cli.main import main
from escrowmq.client.ledger_table import SqlLedger
from escrowmq.client.links import SqliteLink
from escrowmq.store.lock import DirectoryLock
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


def by_check(findings: Iterator[Finding]) -> dict[str, Finding]:
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
    monkeypatch.setattr("escrowmq.cli.doctor.DEFAULT_BROKER", "127.0.0.1:1")
    assert levels(run())["broker"] == "information"
    assert levels(run("--broker", "127.0.0.1:1", code=1))["broker"] == "problem"


def test_every_finding_is_a_line_for_people_and_a_row_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--broker", "127.0.0.1:1"])
    lines = capsys.readouterr().out.splitlines()
    assert all(line.split()[0] in set(Level) for line in lines)
    with pytest.raises(SystemExit):
        main(["doctor", "--broker", "127.0.0.1:1", "-o", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["level"] for row in rows] == [line.split()[0] for line in lines]


def test_a_missing_extra_is_information() -> None:
    found = doctor_machine.extra_finding("odd", ("no-such-package", "typer"), "nothing")
    assert (found.level, found.found) == (Level.INFORMATION, "not installed: no-such-package")
    assert 'pip install "escrowmq[odd]"' in found.advice


@pytest.mark.parametrize(
    ("hard_max", "level"),
    [(1_024, Level.WARNING), (65_536, Level.OK), (resource.RLIM_INFINITY, Level.OK)],
)
def test_few_open_files_are_a_warning(hard_max: int, level: Level) -> None:
    assert doctor_machine.open_files_finding(hard_max).level is level


# Answers of a broker.


@pytest.mark.parametrize(
    ("known", "check", "level"),
    [
        ({"broker_version": "0.0.0"}, "versions", Level.WARNING),
        ({"pipeline_away_since_ms": 1}, "pipeline", Level.WARNING),
        ({"pipeline_away_since_ms": 1, "undecided": 1}, "pipeline", Level.PROBLEM),
        ({}, "pipeline", Level.OK),
        ({"undecided": 1}, "undecided", Level.OK),
        ({"undecided": 1, "oldest_undecided_age_ms": DAY_MS}, "undecided", Level.WARNING),
        ({"undecided_without_producer": 1}, "producers", Level.WARNING),
        ({"parked": 1}, "parked", Level.WARNING),
        ({"contradictions": 1}, "contradictions", Level.PROBLEM),
        ({"disk": "no_messages"}, "disk space", Level.PROBLEM),
        ({"disk": "all", "disk_free_bytes": 1}, "disk space", Level.WARNING),
        ({"disk": "all", "disk_free_bytes": 2**40}, "disk space", Level.OK),
        # A release that does not report it.
        ({}, "disk space", Level.OK),
        ({}, "retention", Level.OK),
        ({"retention": "idle", "undecided_bytes": 9}, "retention", Level.OK),
        ({"retention": "waits_for_room"}, "retention", Level.PROBLEM),
        ({"retention": "waits_for_decisions"}, "retention", Level.WARNING),
        ({"retention": "waits_for_permission"}, "retention", Level.WARNING),
        (
            {"retention": "idle", "undecided_bytes": 9, "retention_bytes": 8},
            "retention",
            Level.WARNING,
        ),
        ({"durability": "os"}, "flushes", Level.WARNING),
        ({"flush_ms_median": 1.0, "flush_ms_p99": 250.0}, "flushes", Level.WARNING),
        ({"flush_ms_median": 1.0, "flush_ms_p99": 9.0}, "flushes", Level.OK),
        ({"open_files_max": 256}, "open files", Level.WARNING),
        ({"offsets_lost": "meta.db was missing"}, "consumer offsets", Level.WARNING),
        ({"topics_found": "orders"}, "topics", Level.WARNING),
    ],
)
def test_each_state_of_a_broker_has_its_level(
    known: dict[str, Any], check: str, level: Level
) -> None:
    told = answered(**{"broker_version": version("escrowmq"), **known})
    found = by_check(doctor_broker.of_answer(told, Lag(), took_ms=1, apart_ms=0))
    assert found[check].level is level
    assert bool(found[check].advice) is (level is not Level.OK)


@pytest.mark.parametrize(
    ("took_ms", "apart_ms", "check", "level"),
    [
        (5_000, 0, "broker", Level.WARNING),
        (1, 60_000, "clock", Level.WARNING),
        (1, -60_000, "clock", Level.WARNING),
        # The broker may have read its clock at any time during the 9 s wait.
        (9_000, 8_000, "clock", Level.OK),
    ],
)
def test_slow_answers_and_clocks_are_told_apart(
    took_ms: int, apart_ms: int, check: str, level: Level
) -> None:
    found = by_check(doctor_broker.of_answer(answered(), Lag(), took_ms=took_ms, apart_ms=apart_ms))
    assert found[check].level is level


def test_a_large_lag_is_a_warning() -> None:
    lag = Lag(1_000_000, "g", "t")
    found = by_check(doctor_broker.of_answer(answered(), lag, took_ms=1, apart_ms=0))
    assert found["lag"].level is Level.WARNING


# A data directory.


def test_a_data_directory_is_looked_at_while_it_is_served_and_after(tmp_path: Path) -> None:
    with InProcessBroker(data=tmp_path):
        assert (
            "served by process" in by_check(doctor_data.findings(tmp_path))["data directory"].found
        )
    found = by_check(doctor_data.findings(tmp_path))
    assert "nobody serves it" in found["data directory"].found
    assert found["store"].found == "format version 3"
    assert found["checkpoint"].level is Level.OK


def test_a_store_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    with InProcessBroker(data=tmp_path):
        pass
    (tmp_path / "store" / "checkpoint").unlink()
    assert by_check(doctor_data.findings(tmp_path))["checkpoint"].level is Level.WARNING
    (tmp_path / "store" / "format").write_text('{"version": 99}')
    found = by_check(doctor_data.findings(tmp_path))["store"]
    assert (found.level, "store_version_unknown" in found.found) == (Level.PROBLEM, True)


def test_a_data_directory_that_is_not_there_or_empty_is_information(tmp_path: Path) -> None:
    (found,) = doctor_data.findings(tmp_path / "none")
    assert found.level is Level.INFORMATION
    with DirectoryLock(tmp_path):
        assert by_check(doctor_data.findings(tmp_path))["store"].level is Level.INFORMATION


def test_little_room_is_a_warning() -> None:
    assert doctor_data.free_finding(1).level is Level.WARNING
    assert doctor_data.free_finding(2**40).level is Level.OK


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


def looked_at(connection: sqlite3.Connection) -> dict[str, list[Level]]:
    found: dict[str, list[Level]] = {}
    for finding in doctor_ledgers.of_link("ledger", SqliteLink(connection), NOW_MS):
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
    expected = [Level.WARNING, Level.WARNING, Level.INFORMATION]
    assert looked_at(shop)["ledger durability"] == expected


def test_a_database_that_cannot_be_written_is_a_problem(shop: sqlite3.Connection) -> None:
    shop.execute("PRAGMA query_only = ON")
    assert looked_at(shop)["ledger primary"] == [Level.PROBLEM]


def test_rows_that_the_janitor_left_are_a_warning(shop: sqlite3.Connection) -> None:
    def insert(transaction_id: str, outcome: str, days: int) -> None:
        row = (transaction_id, "g", outcome, NOW_MS - days * DAY_MS)
        shop.execute("INSERT INTO escrowmq_ledger VALUES (?, ?, ?, ?)", row)

    insert("young", "committed", 0)
    # The janitor keeps a fence for a week.
    insert("fence", "rolled_back", 7)
    assert looked_at(shop)["ledger janitor"] == [Level.OK]
    insert("old", "committed", 2)
    assert looked_at(shop)["ledger janitor"] == [Level.WARNING]


def test_a_ledger_without_its_uuid_is_a_problem(shop: sqlite3.Connection) -> None:
    shop.execute("DELETE FROM escrowmq_ledger_id")
    assert looked_at(shop) == {"ledger": [Level.PROBLEM]}


def test_a_server_that_is_not_there_is_a_problem(run: Run) -> None:
    found = run("--set", "ledger.a.url=postgresql://127.0.0.1:1/x", code=1)
    assert levels(found)["ledger a"] == "problem"


def test_a_python_of_spark_that_lacks_us_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = doctor_machine.spark_python_findings()
    assert found.level is Level.INFORMATION
    assert "escrowmq.spark" in found.advice
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    (found,) = doctor_machine.spark_python_findings()
    assert found.level is Level.OK
