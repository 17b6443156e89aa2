"""``escrowmq serve`` as a process of its own: ready, stopped, started again."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from escrowmq.cli.main import main
from escrowmq.cli.serving import is_loopback
from tests.unit.broker.wire import SEND, Peer, sending

READY = re.compile(r"ready name=(127\.0\.0\.1:\d+) broker=(127\.0\.0\.1:\d+) pid=(\d+)\n")
ANY_PORT = ("--port", "0", "--name-port", "0")


@contextmanager
def serving(data: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A broker's process, and its address."""
    command = [sys.executable, "-m", "escrowmq.cli.main", "serve", "--data-dir", str(data)]
    with subprocess.Popen(
        [*command, *ANY_PORT, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            ready = READY.fullmatch(process.stdout.readline())
            assert ready is not None
            assert int(ready[3]) == process.pid
            assert "pipeline" in process.stdout.readline()
            yield process, ready[2]
        finally:
            process.kill()


async def send(address: str) -> int:
    peer = await Peer.to(address)
    answer = await peer.ask(SEND, sending(), b"kept")
    await peer.closed()
    return answer.code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_cleanly_and_it_starts_again(
    tmp_path: Path, number: signal.Signals
) -> None:
    for _ in range(2):
        with serving(tmp_path) as (process, address):
            assert await send(address) == 0
            process.send_signal(number)
            _, errors = process.communicate(timeout=20)
            assert (process.returncode, errors) == (0, "")


async def test_after_a_kill_it_recovers(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, address):
        assert await send(address) == 0
        process.kill()
    with serving(tmp_path, "--broker-name", "b") as (_, address):
        assert await send(address) == 0


def test_other_machines_are_let_in_only_if_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--data-dir", str(tmp_path), "--host", "192.0.2.1"])
    assert "--insecure" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "safe"), [("127.0.0.1", True), ("::1", True), ("10.0.0.1", False), ("name", True)]
)
def test_what_only_this_machine_reaches(host: str, *, safe: bool) -> None:
    assert is_loopback(host) is safe
