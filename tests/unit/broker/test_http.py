"""Pages for probes: their content, and requests that are refused."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pytest

from escrowmq.broker.broker import Broker
from escrowmq.broker.net import http
from escrowmq.broker.server import Server
from escrowmq.protocol.native.frames import encode_call
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.codes import RequestCode
from tests.unit.broker.native_peer import ask
from tests.unit.broker.test_server import heartbeat
from tests.unit.broker.wire import (
    COMMIT,
    DEADLINE_S,
    END,
    ROLLBACK,
    SEND,
    T0,
    Peer,
    clock_of,
    ending,
    half,
    serving,
)


async def hung_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def talk(server: Server, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes; return status, headers and body of the answer."""
    host, _, port = server.http_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    data = await asyncio.wait_for(reader.read(), DEADLINE_S)
    await hung_up(writer)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split(" ")[1]), dict(line.split(": ", 1) for line in lines), body


async def get(server: Server, path: str) -> tuple[int, bytes]:
    code, _, body = await talk(server, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return code, body


@asynccontextmanager
async def watched(data: Path) -> AsyncIterator[Server]:
    async with serving(data, broker={"http_port": 0}) as server:
        yield server


async def shown(server: Server) -> dict[str, Any]:
    code, body = await get(server, "/status")
    assert code == 200
    status: dict[str, Any] = msgspec.json.decode(body)
    return status


async def test_a_broker_that_serves_is_alive_and_ready(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        assert await get(server, "/healthz") == (200, b"ok\n")
        assert await get(server, "/readyz?verbose") == (200, b"ready\n")
        code, headers, body = await talk(server, b"HEAD /status HTTP/1.0\r\n\r\n")
        assert (code, body, headers["Content-Type"]) == (200, b"", "application/json")
        assert int(headers["Content-Length"]) > 100


async def test_the_front_page_names_the_broker_and_links_the_other_pages(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        code, headers, body = await talk(server, b"GET / HTTP/1.1\r\n\r\n")
        page = body.decode()
        assert (code, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert f"<td>{version('escrowmq')}</td>" in page
        assert server.broker_address in page
        linked = re.findall(r'href="([^"]+)"', page)
        assert linked == ["/status", "/metrics", "/healthz", "/readyz"]
        assert [(await get(server, path))[0] for path in linked] == [200] * 4


async def test_a_client_of_the_other_port_is_answered_at_once(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        code, _, body = await talk(server, encode_call(NativeCode.STATUS, 1))
        assert (code, body) == (400, http.WRONG_PORT.encode() + b"\n")


async def test_the_pages_are_off_unless_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        assert not server.http_address


async def test_a_failed_store_is_alive_but_not_ready(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        server.broker.store.failure = OSError("no more")
        code, why = await get(server, "/readyz")
        assert (code, b"store_failed" in why) == (503, True)
        assert await get(server, "/healthz") == (200, b"ok\n")
        status = await shown(server)
        assert not status["is_ready"]
        assert "no more" in status["reason"]


async def test_a_store_that_recovers_is_alive_but_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recover = Server._recover
    seen = []

    async def watched_recover(self: Server, store_host: bytes) -> Broker:
        seen.extend([await get(self, path) for path in ("/healthz", "/readyz", "/status")])
        return await recover(self, store_host)

    monkeypatch.setattr(Server, "_recover", watched_recover)
    async with watched(tmp_path) as server:
        recovering = (503, b"the store recovers\n")
        assert seen == [(200, b"ok\n"), recovering, recovering]
        assert await get(server, "/readyz") == (200, b"ready\n")


async def test_the_status_tells_the_waiting_work_and_the_clients_online(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("a", "orders"))
        before = await shown(server)
        assert (before["undecided"], before["oldest_undecided_age_ms"]) == (0, 0)
        held = [await peer.ask(SEND, half(key), b"x") for key in ("t1", "t2")]
        clock_of(server).advance(ms=5_000)
        await peer.ask(END, ending(held[1], COMMIT))
        status = await shown(server)
        assert (status["undecided"], status["oldest_undecided_age_ms"]) == (1, 5_000)
        assert (status["producers_online"], status["consumers_online"]) == (1, 1)
        assert (status["connections"], status["parked"], status["uptime_ms"]) == (1, 0, 5_000)
        assert status["log_flushed"] == status["log_end"] > status["log_start"] == 0
        assert status["name_address"] == server.name_address
        assert status["broker_address"] == server.broker_address
        assert status["http_address"] == server.http_address
        assert status["background_failed"] == []
        assert (status["undecided_without_producer"], status["contradictions"]) == (0, 0)
        await peer.ask(END, ending(held[1], ROLLBACK))
        assert (await shown(server))["contradictions"] == 1


async def test_a_pipeline_that_says_nothing_is_missed(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        assert (await shown(server))["pipeline_away_since_ms"] == T0
        clock_of(server).advance(ms=1)
        await ask(await Peer.to(server.broker_address), NativeCode.OBEY_VERDICTS)
        assert (await shown(server))["pipeline_away_since_ms"] == 0
        clock_of(server).advance(ms=600_000)
        status = await shown(server)
        assert status["pipeline_away_since_ms"] == status["last_verdict_at_ms"] == T0 + 1


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"GET /nowhere HTTP/1.1\r\n\r\n", 404),
        (b"POST /status HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"GET /status\r\n\r\n", 400),
        (b"GET /status HTTP/2\r\n\r\n", 400),
        (b"\x00\xff\r\n\r\n", 400),
        (b"GET /status HTTP/1.1\r\nX: " + b"y" * http.HEAD_BYTES_MAX, 431),
    ],
)
async def test_anything_else_is_refused(tmp_path: Path, request_: bytes, code: int) -> None:
    async with watched(tmp_path) as server:
        assert (await talk(server, request_))[0] == code
        assert await get(server, "/healthz") == (200, b"ok\n")


async def test_slow_clients_are_cut_off_and_too_many_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(http, "TIME_S_MAX", 0.2)
    async with watched(tmp_path) as server:
        host, _, port = server.http_address.rpartition(":")
        slow, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /status HTT")
        assert (await get(server, "/healthz"))[0] == 503
        assert await asyncio.wait_for(slow.read(), DEADLINE_S) == b""
        await hung_up(writer)
        assert (await get(server, "/healthz"))[0] == 200
