"""Java's AOT cache, which halves the time of the next start.

Java 25 can record which classes a program loaded and which code was hot (an AOT cache). Such a file
fits one build of Java, one class path and one set of options, so a hash of these is its name. A
separate process makes it once (``service/start_training.py``), and later starts use it. A damaged
cache is not used, and Java ignores one that does not fit. Without a cache Spark starts at its
normal speed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.model.event_log import event_log
from escrowmq.pipeline.config import PipelineConfig, spark_missing
from escrowmq.pipeline.spark.home import folder_of
from escrowmq.pipeline.spark.java import java_home, java_major, java_version
from escrowmq.pipeline.spark.session import JVM_OPTIONS, spark_session
from escrowmq.pipeline.spark.version import require_pipeline_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = event_log(__name__)

#: How many caches of other versions are kept beside the one in use.
OTHERS_MAX = 1
JAVA_MIN = 25
#: For our own commands. Python processes their rows, so the code of the second JIT compiler is not
#: worth the processor time that it takes from a broker on the same machine.
QUICK_OPTIONS = ("-XX:TieredStopAtLevel=1",)
_CHUNK_BYTES = 1 << 20
_TRAINING = "escrowmq.pipeline.service.start_training"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCache:
    """The cache for one Java, class path and set of options. The file may not exist."""

    path: Path
    #: Whether this Java can make and use a cache.
    is_possible: bool

    @property
    def _proof(self) -> Path:
        return self.path.with_suffix(".json")

    def is_whole(self) -> bool:
        """Whether the file exists and its size and checksum match."""
        try:
            proof = json.loads(self._proof.read_text(encoding="utf-8"))
            # The size check is cheap and finds a torn copy.
            return bool(
                self.path.stat().st_size == proof["bytes"] and checksum(self.path) == proof["crc32"]
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def options(self) -> tuple[str, ...]:
        """The Java options that use the cache; empty if it is missing or damaged."""
        if not self.is_possible or not self.is_whole():
            return ()
        return (f"-XX:AOTCache={self.path}",)

    def keep(self, draft: Path) -> None:
        """Move a newly written cache into place for later starts."""
        proof = {"bytes": draft.stat().st_size, "crc32": checksum(draft)}
        draft.replace(self.path)
        draft_proof = self._proof.with_suffix(f".{os.getpid()}.tmp")
        draft_proof.write_text(json.dumps(proof), encoding="utf-8")
        draft_proof.replace(self._proof)
        for old in _newest_first(self.path.parent)[OTHERS_MAX + 1 :]:
            StartCache(path=old, is_possible=True).drop()

    def drop(self) -> None:
        """Remove it."""
        for path in (self._proof, self.path):
            path.unlink(missing_ok=True)


def start_cache(cache: Path) -> StartCache:
    """The cache that fits the installed Java and Spark."""
    version = java_version(java_home(cache))
    facts = [version, *JVM_OPTIONS, *QUICK_OPTIONS, *_class_path()]
    name = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    return StartCache(
        path=cache / f"start-{name}.aot",
        is_possible=java_major(version) >= JAVA_MIN,
    )


def quick_session(config: PipelineConfig, *, cache: Path, scratch: Path) -> SparkSession:
    """Start Spark with the cache if a fitting one exists. If that fails, start without it.

    Spark's temporary files are kept in `scratch`.

    Raises:
        RequestRefused: ``spark_missing``, ``spark_unsupported``.
        Unavailable: ``java_missing``.
    """
    require_pipeline_spark()
    from pyspark.errors import PySparkRuntimeError

    found = start_cache(cache)
    cached = found.options()
    try:
        return spark_session(
            config, cache=cache, scratch=scratch, jvm_options=(*QUICK_OPTIONS, *cached)
        )
    except PySparkRuntimeError as error:
        if not cached:
            raise
        log.warning("start_cache_dropped", extra={"path": str(found.path), "why": str(error)})
        found.drop()
        return spark_session(config, cache=cache, scratch=scratch, jvm_options=QUICK_OPTIONS)


def training_command(cache: Path) -> list[str] | None:
    """The command that makes the cache; None if it exists already or this Java cannot use one."""
    found = start_cache(cache)
    if not found.is_possible or found.is_whole():
        return None
    return [sys.executable, "-m", _TRAINING, str(cache), str(os.getpid())]


def checksum(path: Path) -> int:
    """The CRC-32 of a file."""
    found = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            found = zlib.crc32(chunk, found)
    return found


def _class_path() -> list[str]:
    """Each jar of Spark, with its size and modification time."""
    spark = folder_of("pyspark")
    if spark is None:
        raise spark_missing()
    with os.scandir(spark / "jars") as jars:
        stats = [(jar.path, jar.stat()) for jar in jars]
    return sorted(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats)


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("start-*.aot"), key=lambda path: -path.stat().st_mtime_ns)
