"""Delivery of alert notices to a real web server and a real program, however they behave."""

from __future__ import annotations

import json
import os
import queue
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.watch.alert_config import AlertsConfig
from escrowmq.broker.watch.alert_rules import Notice
from escrowmq.broker.watch.alerting import NoticeSender

WAIT_S = 20
SECRET = "T0KEN"


@contextmanager
def web_server(*answers: int) -> Iterator[tuple[str, queue.Queue[dict[str, Any]]]]:
    """Yield the URL of a server that answers these codes, then 200, and the notices it accepted."""
    got: queue.Queue[dict[str, Any]] = queue.Queue()
    codes = iter(answers)

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code = next(codes, 200)
            if code == 200:
                got.put(json.loads(body))
            self.send_response(code)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/{SECRET}", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def notice(alert: str = "parked") -> Notice:
    return Notice(
        alert=alert,
        state="firing",
        broker="b",
        cluster="c",
        summary="s",
        advice="a",
        value=1,
        since_ms=0,
        at_ms=0,
    )


def until(is_so: Any) -> None:  # noqa: ANN401 - a predicate
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline


def test_a_web_server_that_fails_is_tried_again_and_no_secret_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pauses: list[float] = []
    with web_server(500, 503) as (url, got):
        sender = NoticeSender(AlertsConfig(url=url), sleep=pauses.append)
        sender.start()
        sender.put(notice())
        assert got.get(timeout=WAIT_S)["alert"] == "parked"
        until(lambda: sender.counts.sent)
        assert pauses == [1.0, 5.0]
        sender.stop()
    with web_server(*[404] * 3) as (url, _):
        sender = NoticeSender(AlertsConfig(url=url), sleep=pauses.append)
        sender.start()
        sender.put(notice())
        until(lambda: sender.counts.failed)
        sender.stop()
    assert sender.counts.last_error == "the web server answered 404"
    gone = NoticeSender(AlertsConfig(url=url), sleep=pauses.append)
    gone.start()
    gone.put(notice())
    until(lambda: gone.counts.failed)
    gone.stop()
    assert "cannot be reached" in gone.counts.last_error
    assert SECRET not in caplog.text + sender.counts.last_error + gone.counts.last_error
    assert "127.0.0.1" not in gone.counts.last_error


def test_a_program_gets_the_notice_and_its_failure_is_told(tmp_path: Path) -> None:
    script = tmp_path / "tell.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "said = os.environ['ESCROWMQ_ALERT'] + os.environ['ESCROWMQ_ALERT_STATE']\n"
        "pathlib.Path(sys.argv[1]).write_text(said + sys.stdin.read())\n"
    )
    out = tmp_path / "a file"
    config = AlertsConfig(command=f"{sys.executable} {script} '{out}'")
    sender = NoticeSender(config)
    sender.start()
    sender.put(notice())
    until(lambda: sender.counts.sent)
    assert out.read_text().startswith('parkedfiring{"version":1,"alert":"parked"')
    sender.stop()
    for command, why in (
        (f"{sys.executable} -c 'raise SystemExit(3)'", "the program ended with 3"),
        (f"{sys.executable} -c 'import time; time.sleep(60)'", "it did not end in time"),
        ("/no/such/program", "FileNotFoundError: No such file or directory"),
    ):
        failing = NoticeSender(
            AlertsConfig(command=command, timeout_ms=200), sleep=lambda _pause: None
        )
        failing.start()
        failing.put(notice())
        until(lambda one=failing: one.counts.failed)
        failing.stop()
        assert failing.counts.last_error == why


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_a_failure_and_not_followed(code: int) -> None:
    """A client that follows it sends GET without the notice and takes the 200 for success."""
    with web_server() as (elsewhere, _), redirecting(code, elsewhere) as url:
        sender = NoticeSender(AlertsConfig(url=url), sleep=lambda _pause: None)
        sender.start()
        sender.put(notice())
        until(lambda: sender.counts.failed)
        sender.stop()
    assert sender.counts.last_error == f"the web server answered {code}"


@contextmanager
def redirecting(code: int, to: str) -> Iterator[str]:
    answer = f"HTTP/1.1 {code} Elsewhere\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"
    with answering(lambda one: one.sendall(answer.encode())) as url:
        yield url


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """Yield the URL of a web server that answers each connection with this function."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            with one, suppress(OSError):
                one.recv(65_536)
                answer(one)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/{SECRET}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_a_web_server_that_drips_is_cut_off_in_time() -> None:
    """Each byte arrives in time, but the whole answer does not."""
    over = threading.Event()

    def drip(one: socket.socket) -> None:
        one.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while not over.wait(0.02):
            one.sendall(b"x")

    with answering(drip) as url:
        config = AlertsConfig(url=url, timeout_ms=200)
        sender = NoticeSender(config, sleep=lambda _pause: None)
        sender.start()
        sender.put(notice())
        try:
            until(lambda: sender.counts.failed)
        finally:
            over.set()
            sender.stop()
    assert sender.counts.last_error == "it did not end in time"


def test_a_program_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    """The child ignores SIGTERM and would run forever."""
    pipe = tmp_path / "open while the child lives"
    os.mkfifo(pipe)
    child = "trap '' TERM HUP; exec 3>\"$0\"; while :; do sleep 600; done"
    command = shlex.join(["sh", "-c", 'sh -c "$1" "$2" & wait', "sh", child, str(pipe)])
    sender = NoticeSender(AlertsConfig(command=command, timeout_ms=300), sleep=lambda _pause: None)
    sender.start()
    sender.put(notice())
    with pipe.open("rb") as held:
        until(lambda: sender.counts.failed)
        sender.stop()
        assert sender.counts.last_error == "it did not end in time"
        # End of file: no process that was started still has the pipe open.
        assert held.read() == b""


def test_a_full_queue_drops_the_oldest_and_never_waits() -> None:
    sender = NoticeSender(AlertsConfig(url="http://127.0.0.1:1/", queue_max=2))
    for alert in ("parked", "disk_full", "contradiction"):
        sender.put(notice(alert))
    assert sender.counts.dropped == 1


def test_no_more_than_so_many_leave_in_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    pauses: list[float] = []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def sleep(pause: float) -> None:
        pauses.append(pause)
        now[0] += pause

    sender = NoticeSender(AlertsConfig(url="http://x", per_minute_max=2), sleep=sleep)
    for _ in range(5):
        sender._wait_for_turn()
    assert pauses == [60.0, 60.0]
