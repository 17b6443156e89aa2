"""Notices of alerts: which are due, and that they reach a real web server and a real program."""

from __future__ import annotations

import asyncio
import cProfile
import json
import os
import queue
import re
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

import msgspec
import pytest

from escrowmq.broker.alert_config import AlertsConfig, masked
from escrowmq.broker.alert_rules import ALERTS, PIPELINE_STARTS_MS_MAX, AlertStates, Notice
from escrowmq.broker.alerting import NoticeSender
from escrowmq.broker.broker import Broker
from escrowmq.broker.status import Status, status
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_headers import HoldManyHeader
from tests.unit.broker.own_peer import ask, decide, hold, sent_in
from tests.unit.broker.wire import Peer, serving
from tests.unit.repository import ROOT

WAIT_S = 20
SECRET = "T0KEN"


@contextmanager
def web_server(*answers: int) -> Iterator[tuple[str, queue.Queue[dict[str, Any]]]]:
    """A web server that answers with these codes, then with 200; and what it was sent."""
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

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's
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


@pytest.fixture
async def calm(tmp_path: Path) -> Status:
    """The status of a broker with nothing wrong but its missing pipeline, which is not told."""
    async with serving(tmp_path) as server:
        return msgspec.structs.replace(status(server.broker), pipeline_away_since_ms=0)


def changed(told: Status, **fields: object) -> Status:
    return msgspec.structs.replace(told, **fields)


def states(*, hold_ms: int = 1_000, repeat_ms: int = 60_000) -> AlertStates:
    return AlertStates(ALERTS, hold_ms=hold_ms, repeat_ms=repeat_ms)


def looked(known: AlertStates, told: Status, at_ms: int, **fields: object) -> list[Notice]:
    return known.look(changed(told, now_ms=at_ms, **fields), undecided_age_ms=5_000)


def words(notices: list[Notice]) -> list[str]:
    return [f"{one.alert} {one.state}{' again' * one.is_repeated}" for one in notices]


def test_an_alert_is_told_once_then_again_after_a_while_and_when_it_is_over(calm: Status) -> None:
    known = states()
    assert looked(known, calm, 0) == []
    assert looked(known, calm, 0, disk="no_messages") == []
    (notice,) = looked(known, calm, 1_000, disk="no_messages")
    assert (notice.alert, notice.since_ms, notice.at_ms, notice.value) == ("disk_full", 0, 1_000, 1)
    assert known.firing == ["disk_full"]
    assert looked(known, calm, 60_999, disk="no_messages") == []
    assert words(looked(known, calm, 61_000, disk="no_messages")) == ["disk_full firing again"]
    assert words(looked(known, calm, 61_001)) == ["disk_full resolved"]
    assert looked(known, calm, 61_002) == []
    assert known.firing == []


def test_a_condition_that_does_not_last_is_not_told(calm: Status) -> None:
    known = states()
    assert looked(known, calm, 0, is_clock_doubtful=True) == []
    assert looked(known, calm, 500) == []
    assert looked(known, calm, 1_500, is_clock_doubtful=True) == []


def test_events_that_are_counted_are_told_at_once_and_each_increase_is_news(calm: Status) -> None:
    known = states(repeat_ms=0)
    assert words(looked(known, calm, 0, parked=1)) == ["parked firing"]
    assert looked(known, calm, 1, parked=1) == []
    assert words(looked(known, calm, 2, parked=3)) == ["parked firing"]
    assert looked(known, calm, 3, parked=1) == []
    assert words(looked(known, calm, 4, parked=2)) == ["parked firing"]
    assert words(looked(known, calm, 10**9)) == ["parked resolved"]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("undecided_too_old", {"oldest_undecided_age_ms": 5_000}),
        ("nobody_to_ask", {"undecided_without_producer": 1}),
        ("contradiction", {"contradictions": 1}),
        ("pipeline_away", {"pipeline_away_since_ms": 10 - PIPELINE_STARTS_MS_MAX - 1}),
        ("ledger_unreachable", {"undecided_without_ledger": 1}),
        ("retention_waits", {"retention": "waits_for_room"}),
        ("undecided_exceed_retention", {"retention_bytes": 1, "undecided_bytes": 2}),
        ("names_near_limit", {"names_near": "9 of 10 topics"}),
        ("backup_failed", {"backup_failures_in_a_row": 1}),
        ("backup_overdue", {"backup_overdue_ms": 1}),
    ],
)
def test_each_condition_is_an_alert(calm: Status, name: str, fields: dict[str, object]) -> None:
    known = states(hold_ms=0)
    assert [one.alert for one in looked(known, calm, 10, **fields)] == [name]
    young = states(hold_ms=0)
    assert looked(young, calm, 10, oldest_undecided_age_ms=4_999) == []


def test_a_pipeline_that_still_starts_is_no_alert(calm: Status) -> None:
    """The status of a broker says from its start on that no pipeline is attached."""
    known = states(hold_ms=0)
    late_ms = 1 + PIPELINE_STARTS_MS_MAX
    assert looked(known, calm, late_ms, pipeline_away_since_ms=1) == []
    (notice,) = looked(known, calm, late_ms + 1, pipeline_away_since_ms=1)
    assert (notice.alert, notice.value) == ("pipeline_away", late_ms)


async def test_a_broker_posts_an_alert_and_that_it_is_over(tmp_path: Path) -> None:
    with web_server() as (url, got):
        config = {"url": url, "which": "nobody_to_ask", "interval_ms": 10, "hold_ms": 0}
        async with serving(tmp_path, alerts=config) as server:
            peer = await Peer.to(server.broker_address)
            held = (await hold(peer, "t1")).rows[0].half_offset
            fired = await asyncio.to_thread(got.get, timeout=WAIT_S)
            assert (fired["alert"], fired["state"], fired["value"]) == (
                "nobody_to_ask",
                "firing",
                1,
            )
            assert (fired["broker"], fired["version"]) == ("broker-a", 1)
            told = (await ask(peer, OwnCode.STATUS)).header
            assert (told.alerts, told.alerts_firing) == ("on", "nobody_to_ask")
            await decide(peer, held)
            over = await asyncio.to_thread(got.get, timeout=WAIT_S)
            assert (over["alert"], over["state"]) == ("nobody_to_ask", "resolved")


async def test_a_look_costs_little_for_each_producer_group(tmp_path: Path) -> None:
    """Calls of Python functions, which do not depend on the machine as milliseconds do."""
    group_count = 400
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        status(server.broker)
        few = calls_of_status(server.broker)
        for number in range(group_count):
            header = HoldManyHeader(producer_group=f"pay-{number}")
            await ask(peer, OwnCode.HOLD_MANY, header, [sent_in(f"t{number}")])
        assert status(server.broker).undecided_without_producer == group_count
        assert calls_of_status(server.broker) - few < 4 * group_count


def calls_of_status(broker: Broker) -> int:
    profile = cProfile.Profile()
    profile.runcall(status, broker)
    return sum(entry.callcount for entry in profile.getstats())


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


def until(is_so: Any) -> None:  # noqa: ANN401 - a question
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
        (f"{sys.executable} -c 'import time; time.sleep(60)'", "no end in time"),
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


def test_a_redirect_is_a_failure_and_not_followed() -> None:
    """A client that follows one sends GET, without the notice, and takes its 200 for success."""
    for code in (301, 302, 303, 307, 308):
        with web_server(code) as (elsewhere, _), redirecting(code, elsewhere) as url:
            sender = NoticeSender(AlertsConfig(url=url), sleep=lambda _pause: None)
            sender.start()
            sender.put(notice())
            until(lambda one=sender: one.counts.failed)
            sender.stop()
        assert sender.counts.last_error == f"the web server answered {code}"


@contextmanager
def redirecting(code: int, to: str) -> Iterator[str]:
    answer = f"HTTP/1.1 {code} Elsewhere\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"
    with answering(lambda one: one.sendall(answer.encode())) as url:
        yield url


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """A web server that answers each connection in this way."""
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
    """Each byte comes well within the time that all of the answer has."""
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
    assert sender.counts.last_error == "no end in time"


def test_a_program_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    """The child ignores SIGTERM, and would go on for ten minutes."""
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
        assert sender.counts.last_error == "no end in time"
        # The end of the file: nothing that was started has it open any more.
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


def test_a_web_server_that_hangs_does_not_hold_the_broker(tmp_path: Path) -> None:
    """The loop answers while a notice hangs, and stopping does not wait for it."""

    async def run() -> None:
        # Its kernel accepts connections, and nobody ever answers.
        hanging = socket.create_server(("127.0.0.1", 0))
        port = hanging.getsockname()[1]
        url = f"http://127.0.0.1:{port}/"
        config = {"url": url, "interval_ms": 10, "hold_ms": 0, "timeout_ms": 60_000}
        async with serving(tmp_path, alerts=config) as server:
            peer = await Peer.to(server.broker_address)
            await hold(peer, "t1")
            while "nobody_to_ask" not in (await ask(peer, OwnCode.STATUS)).header.alerts_firing:
                pass
            began = time.monotonic()
            await ask(peer, OwnCode.STATUS)
            assert time.monotonic() - began < 1.0
        assert time.monotonic() - began < WAIT_S
        hanging.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"url": "ftp://host/x"}, "alerts.url"),
        ({"url": "hooks.example.org"}, "alerts.url"),
        ({"url": "http://[hooks/x"}, "alerts.url"),
        ({"url": "http://hooks:port/x"}, "alerts.url"),
        ({"url": "http://hooks:99999/x"}, "alerts.url"),
        ({"url": "http://user:password@hooks/x"}, "alerts.url"),
        ({"url": "http://hooks/a b"}, "alerts.url"),
        ({"url": "http://hooks/\u00e4"}, "alerts.url"),
        ({"command": "a 'b"}, "alerts.command"),
        ({"which": "parked,colour"}, "alerts.which"),
        ({"interval_ms": 1}, "alerts.interval_ms"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(fields: dict[str, Any], key: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        AlertsConfig(**fields)
    assert refused.value.fields["key"] == key
    assert "hooks" not in str(refused.value)


def test_an_address_is_shown_without_what_may_be_secret() -> None:
    assert masked("") == ""
    assert masked("https://u:p@hooks.example.org/a/b?c=d") == "https://hooks.example.org/***"
    assert masked("http://[bad/x") == "***"
    assert masked("http://127.0.0.1:8080/x") == "http://127.0.0.1:8080/***"
    assert AlertsConfig().names == set(ALERTS)
    assert AlertsConfig(which="parked, disk_full").names == {"parked", "disk_full"}


def test_the_page_shows_a_notice() -> None:
    page = (ROOT / "docs/operate/watching.md").read_text(encoding="utf-8")
    shown = page.partition("```json\n")[2].partition("```")[0]
    notice = msgspec.json.decode(shown, type=Notice)
    assert msgspec.json.decode(shown) == msgspec.to_builtins(notice)


def test_the_page_names_every_alert() -> None:
    page = (ROOT / "docs/operate/watching.md").read_text(encoding="utf-8")
    table = page.partition("| The broker tells it when |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) >= set(ALERTS)
