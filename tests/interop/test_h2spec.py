"""h2spec, the conformance test of HTTP/2 servers, against the gRPC door."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.interop.building import h2spec

TIMEOUT_S = 300
TESTS = 146
TABLE_BYTES = 4_096
#: With a dynamic table of 0 bytes, the door must refuse what these tests send: table sizes of 128
#: and 4,096 bytes. h2spec demands that itself for sizes above the setting (HPACK 6.3).
REFUSED_WITHOUT_A_TABLE = {
    "Sends a dynamic table size update",
    "Sends multiple dynamic table size update",
}


@contextmanager
def served(table_bytes: int) -> Iterator[int]:
    """Serve the echo service in a process of its own; yield its port."""
    command = [sys.executable, "-m", "tests.unit.broker.grpc_echo", str(table_bytes)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()


def outcomes(port: int, report: Path, *more: str) -> dict[str, set[str]]:
    """Run h2spec; return the names of its tests by outcome."""
    command = [str(h2spec() / "driver"), str(port), str(report), *more]
    subprocess.run(command, timeout=TIMEOUT_S, check=False, stdout=subprocess.DEVNULL)
    found: dict[str, set[str]] = {"failed": set(), "skipped": set(), "passed": set()}
    for case in ET.parse(report).iter("testcase"):
        parts = {part.tag for part in case}
        outcome = "failed" if parts & {"failure", "error"} else "passed"
        found["skipped" if "skipped" in parts else outcome].add(
            f"{case.get('package')}: {case.get('classname')}"
        )
    return found


@pytest.mark.parametrize("more", [(), ("tls",)], ids=["plain", "tls"])
def test_every_test_passes(tmp_path: Path, more: tuple[str, ...]) -> None:
    with served(TABLE_BYTES) as port:
        found = outcomes(port, tmp_path / "report.xml", *more)
    assert found["failed"] == set()
    assert found["skipped"] == set()
    assert len(found["passed"]) > TESTS * 0.9, "some names repeat"


def test_without_a_table_only_its_changes_are_refused(tmp_path: Path) -> None:
    with served(0) as port:
        found = outcomes(port, tmp_path / "report.xml")
    assert {name.partition(": ")[2] for name in found["failed"]} == REFUSED_WITHOUT_A_TABLE
    assert found["skipped"] == set()
