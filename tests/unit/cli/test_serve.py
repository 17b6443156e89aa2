"""``escrowmq serve`` in its own process: it gets ready, stops and starts again."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from escrowmq.cli.config import load
from escrowmq.cli.main import main
from escrowmq.cli.run.serving import is_loopback, make_server
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.remoting.frames import encode_request
from escrowmq.store.config import StoreConfig
from escrowmq.transaction.policy import CheckPolicy
from tests.unit.broker.wire import SEND, Peer, sending

READY = re.compile(
    r"ready name=127\.0\.0\.1:\d+ broker=(127\.0\.0\.1:\d+)"
    r"(?: http=(127\.0\.0\.1:\d+))? pid=(\d+)\n"
)
ANY_PORT = ("--port", "0", "--name-port", "0", "--grpc-port", "-1")


@contextmanager
def serving(data: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a broker process and its address."""
    with started(data, *flags) as (process, ready):
        yield process, ready[1]


@contextmanager
def started(data: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], re.Match[str]]]:
    """Yield a broker process and its ready line."""
    command = [sys.executable, "-m", "escrowmq.cli.main", "serve", "--data-dir", str(data)]
    with subprocess.Popen(
        [*command, *ANY_PORT, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            ready = READY.fullmatch(process.stdout.readline())
            assert ready is not None
            assert int(ready[3]) == process.pid
            yield process, ready
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


@pytest.mark.parametrize("checked_by", ["pipeline", "off"])
def test_a_broker_that_does_not_check_says_so(tmp_path: Path, checked_by: str) -> None:
    flags = ("--set", f"transaction.checked_by={checked_by}")
    with started(tmp_path, *flags) as (process, _):
        assert process.stdout is not None
        told = process.stdout.readline()
    assert told.startswith("undecided transactions wait: transaction.checked_by ")


async def test_after_a_kill_it_recovers(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, address):
        assert await send(address) == 0
        process.kill()
    with serving(tmp_path, "--broker-name", "b") as (_, address):
        assert await send(address) == 0


def test_probes_and_people_are_answered_over_http(tmp_path: Path) -> None:
    with started(tmp_path, "--http-port", "0") as (process, ready):
        for path, wanted in (
            ("/healthz", b"ok\n"),
            ("/readyz", b"ready\n"),
            ("/status", b"{"),
            ("/metrics", b"# HELP escrowmq_build_info "),
        ):
            connection = HTTPConnection(ready[2], timeout=20)
            connection.request("GET", path)
            answer = connection.getresponse()
            assert (answer.status, answer.read().startswith(wanted)) == (200, True)
            connection.close()
        process.terminate()
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")


def test_flags_stand_for_settings_and_a_file_may_hold_the_others(tmp_path: Path) -> None:
    file = tmp_path / "escrowmq.toml"
    file.write_text('[broker]\nname = "from-file"\nhttp_port = 0\n', encoding="utf-8")
    flags = ("--config", str(file), "--cluster", "c1", "--advertise-host", "127.0.0.1")
    with started(tmp_path / "data", *flags, "--host", "127.0.0.1") as (_, ready):
        connection = HTTPConnection(ready[2], timeout=20)
        connection.request("GET", "/status")
        status = json.loads(connection.getresponse().read())
        connection.close()
        assert (status["broker"], status["cluster"]) == ("from-file", "c1")


@pytest.mark.parametrize("flags", [("--log-format", "json"), ("--set", "log.format=json")])
async def test_events_are_logged_as_objects_if_that_is_wanted(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    with serving(tmp_path, *flags) as (process, address):
        peer = await Peer.to(address)
        peer.write(b"this is no frame at all")
        assert await peer.is_cut()
        await peer.closed()
        process.terminate()
        _, errors = process.communicate(timeout=20)
    (event,) = map(json.loads, errors.splitlines())
    assert (event["event"], event["level"]) == ("frame_malformed", "WARNING")
    assert (event["logger"], event["count"]) == ("escrowmq.broker.net.limits", 1)
    assert event["ts"].endswith("Z")


def test_a_lower_level_logs_more(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-level", "info") as (process, _):
        process.terminate()
        _, errors = process.communicate(timeout=20)
    assert re.search(r" INFO escrowmq\.store\.recovery\.recovery store_recovered \w+=", errors)


async def test_requests_before_the_signal_are_answered(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, address):
        peer = await Peer.to(address)
        asked = range(1, 51)
        peer.write(
            b"".join(encode_request(SEND, one, header=sending(), body=b"x") for one in asked)
        )
        first = await peer.until(lambda _: True)
        process.terminate()
        others = [await peer.until(lambda _: True) for _ in asked[1:]]
        assert {one.opaque for one in (first, *others)} == set(asked)
        assert {one.code for one in (first, *others)} == {0}
        await peer.closed()
        assert process.wait(timeout=20) == 0


def test_settings_are_rocketmqs_unless_set() -> None:
    policy, store = CheckPolicy(), StoreConfig()
    assert (policy.check_after_ms, policy.check_interval_ms, policy.checks_max) == (
        6_000,
        30_000,
        15,
    )
    assert store.retention_ms == 72 * 3_600_000


def test_other_machines_are_let_in_only_if_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--data-dir", str(tmp_path), "--host", "192.0.2.1"])
    assert "--insecure" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("access", "tls", "is_let_in"),
    [("on", "required", True), ("on", "optional", False), ("off", "required", False)],
)
async def test_other_machines_are_let_in_to_a_protected_broker(
    tmp_path: Path, *, access: str, tls: str, is_let_in: bool
) -> None:
    names = {"broker.host": "192.0.2.1", "access.mode": access, "tls.mode": tls}
    config = load(environ={}, flags=[f"{name}={value}" for name, value in names.items()])
    if is_let_in:
        make_server(tmp_path, config, insecure=False)
    else:
        with pytest.raises(RequestRefused, match="host_insecure"):
            make_server(tmp_path, config, insecure=False)


@pytest.mark.parametrize(
    ("host", "safe"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        # A name may resolve to any address. An empty host means all addresses.
        ("name", False),
        ("", False),
    ],
)
def test_loopback_hosts_are_recognized(host: str, *, safe: bool) -> None:
    assert is_loopback(host) is safe
