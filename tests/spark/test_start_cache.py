"""The cache of an earlier start of Java: kept, found again, and never an obstacle.

The tests run a real Java on Spark's own class path, with a main class of Spark that ends at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from escrowmq.pipeline.service.start_training import exercise
from escrowmq.pipeline.spark.java import java_home
from escrowmq.pipeline.spark.session import JVM_OPTIONS
from escrowmq.pipeline.spark.start_cache import StartCache, start_cache, training_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_HOME = Path(pyspark.__file__).parent
#: Run in another process, because a process has only one Java.
STARTING = """
import sys
from pathlib import Path
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.spark.start_cache import quick_session

cache, scratch = map(Path, sys.argv[1:])
spark = quick_session(PipelineConfig(master="local[1]"), cache=cache, scratch=scratch)
print(spark.range(3).count())
spark.stop()
"""
WORDS = ("org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", "--version")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a cache")


@pytest.fixture
def found(cache: Path, monkeypatch: pytest.MonkeyPatch) -> StartCache:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return start_cache(cache)


@pytest.fixture
def made(found: StartCache) -> StartCache:
    """Return the cache; make it by a short run of Java if it does not exist."""
    if not found.is_whole():
        draft = found.path.with_suffix(".draft")
        run_java(found, f"-XX:AOTCacheOutput={draft}")
        found.keep(draft)
    return found


def run_java(found: StartCache, *options: str) -> str:
    java = java_home(found.path.parent) / "bin" / "java"
    done = subprocess.run(
        [java, *JVM_OPTIONS, *options, "-cp", f"{SPARK_HOME}/jars/*", *WORDS],
        env={**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_SCALA_VERSION": "2.13"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout + done.stderr


def test_it_is_used_once_it_is_there(found: StartCache, made: StartCache) -> None:
    assert training_command(found.path.parent) is None
    (option,) = found.options()
    assert option == f"-XX:AOTCache={made.path}"
    # With "on" in place of "auto", Java ends at once if it cannot use the cache.
    assert "SparkSubmit" in run_java(found, option, "-XX:AOTMode=on")


def test_without_one_java_is_told_nothing_and_it_is_to_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert start_cache(tmp_path).options() == ()
    command = training_command(tmp_path)
    assert command is not None
    module = "escrowmq.pipeline.service.start_training"
    assert command[1:] == ["-m", module, str(tmp_path), str(os.getpid())]


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "unproved", "odd proof"])
def test_a_damaged_one_is_not_used(made: StartCache, tmp_path: Path, damage: str) -> None:
    copy = StartCache(path=tmp_path / made.path.name, is_possible=True)
    content = bytearray(made.path.read_bytes())
    draft = tmp_path / "draft"
    draft.write_bytes(content)
    copy.keep(draft)
    assert copy.options()
    proof = copy.path.with_suffix(".json")
    if damage == "flipped":
        content[len(content) // 2] ^= 1
        copy.path.write_bytes(content)
    elif damage == "cut":
        copy.path.write_bytes(content[:-1])
    elif damage == "gone":
        copy.path.unlink()
    elif damage == "unproved":
        proof.unlink()
    else:
        proof.write_text("[]")
    assert copy.options() == ()


@pytest.mark.parametrize("content", [b"", b"not a cache" * 1_000])
def test_one_that_does_not_fit_is_passed_over_by_java(
    tmp_path: Path, made: StartCache, content: bytes
) -> None:
    other = tmp_path / "other.aot"
    other.write_bytes(content)
    assert "SparkSubmit" in run_java(made, f"-XX:AOTCache={other}")


def test_a_start_that_fails_with_one_is_tried_without_and_drops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    sound = java_home(tmp_path) / "bin" / "java"
    java = tmp_path / "moody" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\ncase "$*" in *AOTCache=*) exit 1 ;; esac\nexec {sound} "$@"\n')
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    found = start_cache(tmp_path)
    draft = tmp_path / "draft"
    draft.write_bytes(b"x")
    found.keep(draft)
    assert found.options()
    command = [sys.executable, "-c", STARTING, str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "3\n"
    assert "start_cache_dropped" in done.stderr
    assert not found.path.exists()


def test_an_older_java_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.8\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = start_cache(tmp_path)
    assert not found.is_possible
    assert training_command(tmp_path) is None
    found.path.write_bytes(b"")
    found.path.with_suffix(".json").write_text(json.dumps({"bytes": 0, "crc32": 0}))
    assert found.options() == ()


def test_those_of_other_versions_do_not_pile_up(tmp_path: Path) -> None:
    caches = [StartCache(path=tmp_path / f"start-{n}.aot", is_possible=True) for n in range(4)]
    for number, one in enumerate(caches):
        draft = tmp_path / "draft"
        draft.write_bytes(b"x")
        os.utime(draft, (number, number))
        one.keep(draft)
    assert [one.is_whole() for one in caches] == [False, False, True, True]
    assert len(list(tmp_path.iterdir())) == 4


def test_training_does_a_little_of_everything(spark: SparkSession, tmp_path: Path) -> None:
    exercise(spark, tmp_path)
    assert (tmp_path / "checkpoint" / "commits" / "0").exists()
