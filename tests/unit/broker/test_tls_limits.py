"""What a peer can cost before and during TLS: handshakes, silence, unread answers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
import weakref
from pathlib import Path

import pytest

from escrowmq.broker.net import opening
from escrowmq.broker.net.opening import Opening
from escrowmq.broker.server import Server
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.frames import encode_request
from tests.unit.broker.test_limits import KIB, fill, pulling, talk
from tests.unit.broker.tls_files import Pki
from tests.unit.broker.wire import DEADLINE_S, SEND, Peer, eventually, sending, serving

#: The head of a TLS record that never ends.
BEGUN_HELLO = b"\x16\x03\x01\x02\x00\x01"


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


def begun(server: Server) -> set[Opening]:
    """Return the connections whose protocol has not begun."""
    return server._doors._remoting.opening


async def raw(
    server: Server, first: bytes, source: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect from an address, and send these bytes only."""
    host, _, port = server.broker_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    writer.write(first)
    await writer.drain()
    return reader, writer


async def hears_the_end(reader: asyncio.StreamReader) -> bool:
    """Wait until the broker closes the connection; return whether it said nothing else."""
    try:
        return not await asyncio.wait_for(reader.read(), DEADLINE_S)
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("mode", ["optional", "required"])
async def test_a_handshake_that_does_not_go_on_is_cut(tmp_path: Path, pki: Pki, mode: str) -> None:
    async with serving(tmp_path / "data", tls={"mode": mode, **pki.fields()}) as server:
        server._doors._remoting.opening_ms_max = 50
        reader, writer = await raw(server, BEGUN_HELLO)
        assert await hears_the_end(reader)
        assert server.limits.counts["opening_failed"] == 1
        assert not begun(server)
        writer.close()


async def test_a_silent_peer_may_stay_where_plaintext_is_allowed(tmp_path: Path, pki: Pki) -> None:
    async with serving(tmp_path / "data", tls=pki.fields()) as server:
        server._doors._remoting.opening_ms_max = 50
        peer = await Peer.to(server.broker_address)
        await eventually(lambda: len(server._connections) == 1)
        assert (await peer.ask(SEND, sending())).code == ResponseCode.SUCCESS
        assert not server.limits.counts


async def test_a_silent_peer_is_cut_where_tls_is_required(tmp_path: Path, pki: Pki) -> None:
    async with serving(tmp_path / "data", tls={"mode": "required", **pki.fields()}) as server:
        server._doors._remoting.opening_ms_max = 50
        reader, writer = await raw(server, b"")
        assert await hears_the_end(reader)
        assert server.limits.counts["opening_failed"] == 1
        writer.close()


async def test_silent_peers_count_as_connections(tmp_path: Path, pki: Pki) -> None:
    async with serving(tmp_path / "data", broker={"connections_max": 2}, tls=pki.fields()) as one:
        silent = [await Peer.to(one.broker_address) for _ in range(2)]
        assert await (await Peer.to(one.broker_address)).is_cut()
        assert one.limits.counts["too_many_connections"] == 1
        assert one._connection_count() == 2
        for peer in silent:
            assert (await peer.ask(SEND, sending())).code == ResponseCode.SUCCESS


async def test_a_flood_from_one_address_crowds_out_its_own_handshakes(
    tmp_path: Path, pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "HANDSHAKES_MAX", 4)
    async with serving(tmp_path / "data", tls=pki.fields()) as server:
        slow_reader, slow_writer = await raw(server, BEGUN_HELLO)
        await eventually(lambda: len(begun(server)) == 1)
        flood = [await raw(server, BEGUN_HELLO, "127.0.0.2") for _ in range(10)]
        await eventually(lambda: server.limits.counts["handshake_crowded_out"] == 7)
        # The oldest went first, and the other address lost none.
        ends = await asyncio.gather(*(hears_the_end(reader) for reader, _ in flood[:7]))
        assert all(ends)
        assert len(begun(server)) == 4
        assert not slow_reader.at_eof()
        peer = await Peer.to(server.broker_address, pki.trusting())
        assert (await peer.ask(SEND, sending())).code == ResponseCode.SUCCESS
        for writer in (slow_writer, *(writer for _, writer in flood)):
            writer.close()
        await eventually(lambda: not begun(server))


async def test_a_handshake_has_a_size(tmp_path: Path, pki: Pki) -> None:
    async with serving(tmp_path / "data", tls=pki.fields()) as server:
        # A hello of 16 MiB, in records of 16 KiB.
        record = b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff" + bytes(16_380)
        reader, writer = await raw(server, record)
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                writer.write(b"\x16\x03\x01\x40\x00" + bytes(16_384))
                await writer.drain()
        await hears_the_end(reader)
        assert server.limits.counts["opening_failed"] == 1


async def test_handshakes_take_turns_with_the_requests_of_others(tmp_path: Path, pki: Pki) -> None:
    async with serving(tmp_path / "data", tls=pki.fields()) as server:
        known = await Peer.to(server.broker_address)
        assert (await known.ask(SEND, sending())).code == ResponseCode.SUCCESS
        context = pki.trusting()
        flood = asyncio.gather(*(Peer.to(server.broker_address, context) for _ in range(100)))
        answered = 0
        while not flood.done():
            assert (await known.ask(SEND, sending())).code == ResponseCode.SUCCESS
            answered += 1
        assert len(await flood) == 100
        # Each answer takes some turns of the loop, and a turn has about one step of a handshake.
        assert answered > 2
        assert not server.limits.counts


async def test_a_connection_with_tls_is_gone_without_the_collector(
    tmp_path: Path, pki: Pki
) -> None:
    async with serving(tmp_path / "data", tls=pki.fields()) as server:
        gc.disable()
        try:
            peer = await Peer.to(server.broker_address, pki.trusting())
            await talk(server, peer)
            (connection,) = server._connections
            gone = weakref.ref(connection)
            del connection
            await peer.closed()
            await eventually(lambda: gone() is None)
        finally:
            gc.enable()


# What a peer does not read.


async def asked_and_not_read(server: Server, pki: Pki, pulls: int) -> Peer:
    """Connect a peer that pulls and does not read."""
    peer = await Peer.to(server.broker_address, pki.trusting())
    # The first pull creates the group; pulls meanwhile would be answered in another order.
    await peer.ask(RequestCode.PULL_MESSAGE, pulling())
    for number in range(pulls):
        peer.write(encode_request(RequestCode.PULL_MESSAGE, number, header=pulling(sys_flag=4)))
    return peer


async def test_unread_answers_count_with_tls_too(tmp_path: Path, pki: Pki) -> None:
    limits = {"slow_bytes": 100 * KIB}
    async with serving(tmp_path / "data", broker=limits, tls=pki.fields()) as server:
        await fill(server, 1)
        peer = await asked_and_not_read(server, pki, 200)
        unread = server.limits.unread
        await eventually(lambda: unread.bytes > 100 * KIB)
        assert unread.bytes < 200 * 200 * KIB / 2
        for number in range(200):
            assert (await peer.until(lambda frame: frame.is_response)).opaque == number
        await eventually(lambda: unread.bytes == 0)
        assert not server.limits.counts


async def test_a_peer_that_never_reads_is_cut_with_tls_too(tmp_path: Path, pki: Pki) -> None:
    limits = {"slow_bytes": 100 * KIB, "stalled_ms_max": 100}
    async with serving(tmp_path / "data", broker=limits, tls=pki.fields()) as server:
        await fill(server, 1)
        await asked_and_not_read(server, pki, 200)
        await eventually(lambda: server.limits.counts["reader_stalled"])
        assert server.limits.unread.bytes == 0


async def test_an_idle_connection_with_tls_is_not_stalled(tmp_path: Path, pki: Pki) -> None:
    limits = {"stalled_ms_max": 100}
    async with serving(tmp_path / "data", broker=limits, tls=pki.fields()) as server:
        peer = await Peer.to(server.broker_address, pki.trusting())
        assert (await peer.ask(SEND, sending())).code == ResponseCode.SUCCESS
        late = asyncio.get_running_loop().time() + 10
        for connection in server._connections:
            connection.end_if_stalled(late)
        assert (await peer.ask(SEND, sending())).code == ResponseCode.SUCCESS


async def test_bytes_that_cannot_be_decrypted_end_the_connection(tmp_path: Path, pki: Pki) -> None:
    async with serving(tmp_path / "data", tls=pki.fields()) as server:
        peer = await Peer.to(server.broker_address, pki.trusting())
        assert (await peer.ask(SEND, sending())).code == ResponseCode.SUCCESS
        plain: asyncio.Transport = peer._writer.transport._ssl_protocol._transport  # type: ignore[attr-defined]  # below TLS
        plain.write(b"\x17\x03\x03\x00\x20" + bytes(32))
        await eventually(lambda: not server._connections)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await peer.ask(SEND, sending())
