"""Origin of a report: version, date and machine."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

_GIB = 1 << 30


class ReportOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The program, the moment and the machine that made a report."""

    version: str
    written_at_ms: int
    host: str
    processors: int
    processor_model: str
    memory_bytes: int
    system: str
    python: str
    #: Empty if PySpark is not installed.
    pyspark: str = ""

    @property
    def machine(self) -> str:
        """A short description of the machine."""
        model = f" ({self.processor_model})" if self.processor_model else ""
        memory = f"{self.memory_bytes / _GIB:,.0f} GiB" if self.memory_bytes else "unknown memory"
        plural = "" if self.processors == 1 else "s"
        return f"{self.host}: {self.processors} processor{plural}{model}, {memory}"

    @property
    def software(self) -> str:
        """System, Python and Spark."""
        spark = f", PySpark {self.pyspark}" if self.pyspark else ""
        return f"{self.system}, Python {self.python}{spark}"


def this_origin() -> ReportOrigin:
    """This program, now, on this machine."""
    return ReportOrigin(
        version=_version_of("escrowmq"),
        written_at_ms=time.time_ns() // 1_000_000,
        host=platform.node(),
        processors=len(os.sched_getaffinity(0)),
        processor_model=_processor_model(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        pyspark=_version_of("pyspark"),
    )


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _processor_model() -> str:
    """The processor's name as Linux reports it; empty if it reports none."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n"):
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return ""


def moment(at_ms: int | None) -> str:
    """A time as text; empty for None."""
    if at_ms is None:
        return ""
    try:
        at = datetime.fromtimestamp(at_ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        # Some machine's clock was far off.
        return f"{at_ms} ms"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
