"""The demo as users run it: real processes, real kills, the real audit, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.unit.repository import ROOT, blocks
from tests.unit.test_docs import commands, matches

RUN_S_MAX = 600
#: All processes of a run have this variable in their environment.
MARK = "DEMO_TEST_MARK"


@contextmanager
def demo(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the demo with its own temporary directory and cache; yield the process and its mark."""
    mark = uuid.uuid4().hex
    places = {"TMPDIR": folder / "tmp", "XDG_CACHE_HOME": folder / "cache"}
    for place in places.values():
        place.mkdir()
    environ = {name: value for name, value in os.environ.items() if name != "ESCROWMQ_CONFIG"}
    environ |= {name: str(place) for name, place in places.items()}
    # Use the packaged Java, even if the host has one.
    environ |= {"JAVA_HOME": "", "PYTHONUNBUFFERED": "1", MARK: mark}
    words = [sys.executable, "-m", "escrowmq.cli.main", "demo", *options]
    words += ["--report", str(folder / "report")]
    with subprocess.Popen(
        words, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, mark
        finally:
            process.kill()


def left_of(mark: str) -> list[str]:
    """Return the command lines of a run's processes that still exist."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # The process has ended, or belongs to another user.
    return found


def shape(text: str) -> str:
    """Replace figures and runs of spaces, so that the text is the same for all runs."""
    return re.sub(r" +", " ", re.sub(r"\d[\d,.]*\d|\d", "0", text))


def readme_block() -> str:
    shown = [
        output
        for block in blocks(ROOT / "README.md")
        if block.kind == "console"
        for command, output in commands(block)
        if command.startswith("escrowmq demo")
    ]
    assert len(shown) == 1
    return shown[0]


def test_plain_messages_disagree_and_transactional_ones_do_not(tmp_path: Path) -> None:
    with demo(tmp_path, "--orders", "200", "--kills", "4", "--seed", "3") as (process, mark):
        printed, errors = process.communicate(timeout=RUN_S_MAX)
    assert process.returncode == 0, printed + errors
    assert left_of(mark) == []
    assert list((tmp_path / "tmp").iterdir()) == []

    figures = json.loads((tmp_path / "report/demo.json").read_bytes())
    plain, transactional = figures["plain"], figures["transactional"]
    # One kill hit between COMMIT and send, so the audit finds an order without its message.
    lost = [one for one in figures["audited"]["plain"]["findings"] if one["kind"] == "lost"]
    assert sum(one["total"] for one in lost) >= 1
    # Another kill hit between send and COMMIT, so it finds a message without its order.
    names = {one["name"] for one in figures["audited"]["plain"]["findings"]}
    assert "message_without_business_row" in names
    assert all(count >= 1 for count in plain["wrong_effects"].values())
    assert figures["audited"]["transactional"]["findings"] == []
    assert transactional["paid"] == transactional["messages"] == 200
    assert set(transactional["wrong_effects"].values()) == {0}
    # Both runs had the same kills. The ledger committed one transaction, and a fence ended another.
    kinds = [
        sorted((one["victim"], one["moment"]) for one in run["kills"])
        for run in (plain, transactional)
    ]
    assert kinds[0] == kinds[1]
    assert len(kinds[0]) == 4
    decided = figures["audited"]["decided"]
    assert decided["committed_by_ledger"] >= 1
    assert decided["rolled_back_by_fence"] >= 1
    assert decided["undecided"] == 0

    assert "<svg" in (tmp_path / "report/demo.html").read_text(encoding="utf-8")
    assert matches(shape(readme_block()), shape(printed)), printed


def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    with demo(tmp_path, "--orders", "5000", "--kills", "0") as (process, mark):
        assert process.stdout is not None
        for line in process.stdout:
            if "orders paid" in line:
                break
        assert len(left_of(mark)) > 5, "broker and its look-ups, orders, three downstream"
        process.send_signal(signal.SIGINT)
        assert process.wait(RUN_S_MAX) != 0
        assert "Traceback" not in (process.stderr.read() if process.stderr else "")
    assert left_of(mark) == []
    assert list((tmp_path / "tmp").iterdir()) == []
