"""TLS of a broker on real sockets: each door with it and without, client certificates, reloads."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from escrowmq.broker.net.certificates import CertificateUse
from escrowmq.broker.server import Server
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.native.frames import encode_call, read_answer
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from tests.unit.broker.test_limits import pulling
from tests.unit.broker.tls_files import CLIENT, Pki
from tests.unit.broker.wire import DEADLINE_S, SEND, Peer, eventually, sending, serving

BIG = 3 * 1024 * 1024
#: What a client sees of a handshake that the broker refuses.
REFUSED = (ssl.SSLError, ConnectionError)


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


def names_of(server: Server) -> set[tuple[str, ...]]:
    """Return the certificate names of all connections."""
    return {one.certificate_names for one in server._connections}


async def send_one(peer: Peer, body: bytes = b"1") -> int:
    return (await peer.ask(SEND, sending(), body)).code


async def test_each_remoting_port_speaks_tls_and_plaintext(tmp_path: Path, pki: Pki) -> None:
    async with serving(tmp_path / "data", tls=pki.fields()) as server:
        for address in (server.name_address, server.broker_address):
            for context in (None, pki.trusting()):
                peer = await Peer.to(address, context)
                assert await send_one(peer) == ResponseCode.SUCCESS
        assert names_of(server) == {()}
        assert not server.limits.counts


async def test_large_requests_and_answers_cross_tls_whole(tmp_path: Path, pki: Pki) -> None:
    async with serving(tmp_path / "data", tls=pki.fields()) as server:
        peer = await Peer.to(server.broker_address, pki.trusting())
        body = bytes(range(256)) * (BIG // 256)
        assert await send_one(peer, body) == ResponseCode.SUCCESS
        pulled = await peer.ask(RequestCode.PULL_MESSAGE, pulling())
        assert body in pulled.body


async def get(address: str, tls: ssl.SSLContext | None, path: str = "/healthz") -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    async with asyncio.timeout(DEADLINE_S):
        answer = await reader.read()
    writer.close()
    return answer


async def test_pages_are_served_over_https_too(tmp_path: Path, pki: Pki) -> None:
    async with serving(tmp_path / "data", broker={"http_port": 0}, tls=pki.fields()) as server:
        for context in (None, pki.trusting()):
            assert (await get(server.http_address, context)).startswith(b"HTTP/1.1 200 OK")
        head, _, body = (await get(server.http_address, pki.trusting(), "/metrics")).partition(
            b"\r\n\r\n"
        )
        assert f"Content-Length: {len(body)}".encode() in head


async def test_without_settings_the_broker_has_its_own_certificate(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(tmp_path / "tls" / "cert.pem")
        peer = await Peer.to(server.broker_address, context)
        assert await send_one(peer) == ResponseCode.SUCCESS
        assert server.tls.expires_at_ms > Pki.now_ms()


async def test_off_means_no_certificate_and_no_look_at_first_bytes(tmp_path: Path) -> None:
    async with serving(tmp_path, tls={"mode": "off"}) as server:
        peer = await Peer.to(server.broker_address)
        assert await send_one(peer) == ResponseCode.SUCCESS
        with pytest.raises(REFUSED):
            await Peer.to(server.broker_address, Pki(tmp_path / "pki").trusting())
        assert not (tmp_path / "tls").exists()
        assert server.limits.counts["frame_malformed"] == 1


async def test_a_request_without_tls_is_told_what_is_missing(tmp_path: Path, pki: Pki) -> None:
    fields = {"mode": "required", **pki.fields()}
    async with serving(tmp_path / "data", tls=fields) as server:
        for is_binary in (False, True):
            peer = await Peer.to(server.name_address)
            answer = await peer.ask(SEND, sending(), bytes(BIG), is_binary=is_binary)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.remark.startswith("tls_required: ")
            assert await peer.is_cut()
        assert server.limits.counts["tls_mismatch"] == 2
        assert await send_one(await Peer.to(server.name_address, pki.trusting())) == 0


async def test_a_native_request_without_tls_is_a_typed_refusal(tmp_path: Path, pki: Pki) -> None:
    fields = {"mode": "required", **pki.fields()}
    async with serving(tmp_path / "data", tls=fields) as server:
        peer = await Peer.to(server.broker_address)
        # Byte by byte, and only the head: the answer does not wait for the body.
        for byte in encode_call(NativeCode.STATUS, 1)[:-1]:
            peer.write(bytes((byte,)))
        peer.write(encode_call(NativeCode.STATUS, 1)[-1:])
        answer = await peer.until(lambda frame: frame.is_response)
        with pytest.raises(RequestRefused, match="tls_required"):
            read_answer(NativeCode.STATUS, answer)


async def test_https_is_told_to_who_asks_for_http(tmp_path: Path, pki: Pki) -> None:
    fields = {"mode": "required", **pki.fields()}
    async with serving(tmp_path / "data", broker={"http_port": 0}, tls=fields) as server:
        answer = await get(server.http_address, None)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"tls_required" in answer
        assert (await get(server.http_address, pki.trusting())).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    "garbage", [b"\x00\x00\x00\x08\x00\x00\x00\x04nope", bytes(70_000), b"\xff"]
)
async def test_garbage_without_tls_gets_no_answer(tmp_path: Path, pki: Pki, garbage: bytes) -> None:
    fields = {"mode": "required", **pki.fields()}
    async with serving(tmp_path / "data", tls=fields) as server:
        reader, writer = await asyncio.open_connection(*address_of(server))
        writer.write(garbage)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
        writer.close()


def address_of(server: Server) -> tuple[str, int]:
    host, _, port = server.broker_address.rpartition(":")
    return host, int(port)


# Certificates of clients.


async def test_a_verified_client_is_known_by_its_names(tmp_path: Path, pki: Pki) -> None:
    fields = {"mode": "required", **pki.fields(asks_clients=True)}
    async with serving(tmp_path / "data", tls=fields) as server:
        peer = await Peer.to(server.broker_address, pki.trusting(shows=pki.client))
        assert await send_one(peer) == ResponseCode.SUCCESS
        assert names_of(server) == {(f"CN:{CLIENT}", "DNS:orders.example.org")}


async def test_a_client_without_a_good_certificate_is_not_served(tmp_path: Path, pki: Pki) -> None:
    foreign = Pki(tmp_path / "foreign")
    fields = {"mode": "required", **pki.fields(asks_clients=True)}
    async with serving(tmp_path / "data", tls=fields) as server:
        # A server's certificate does not say that its holder is a client.
        for shown in (None, foreign.client, pki.server):
            with pytest.raises(REFUSED):
                await send_one(await Peer.to(server.broker_address, pki.trusting(shows=shown)))
        assert server.limits.counts["opening_failed"] == 3
        assert not server._connections


async def test_old_versions_of_tls_are_refused(tmp_path: Path, pki: Pki) -> None:
    async with serving(tmp_path / "data", tls=pki.fields()) as server:
        old = pki.trusting()
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1 "):
            old.minimum_version = ssl.TLSVersion.TLSv1
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(REFUSED):
            await Peer.to(server.broker_address, old)
        exact = pki.trusting()
        exact.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await send_one(await Peer.to(server.broker_address, exact)) == 0


# New certificates.


def serial_of(server: Server, pki: Pki) -> int:
    """Return the serial number of the certificate that a new connection gets. This blocks."""
    with (
        socket.create_connection(address_of(server)) as plain,
        pki.trusting().wrap_socket(plain, server_hostname="127.0.0.1") as tls,
    ):
        shown = tls.getpeercert()
        assert shown is not None
        return int(str(shown["serialNumber"]), 16)


async def test_a_new_certificate_leaves_open_connections_alone(tmp_path: Path, pki: Pki) -> None:
    async with serving(tmp_path / "data", tls=pki.fields()) as server:
        peer = await Peer.to(server.broker_address, pki.trusting())
        assert await send_one(peer) == 0
        before = await asyncio.to_thread(serial_of, server, pki)
        pki.server.write(pki.made(CertificateUse.SERVER, "broker", "127.0.0.1", days=200))
        # The broker's periodic work does the same, after a second look at the same files.
        await server.tls.look()
        await server.tls.look()
        assert await asyncio.to_thread(serial_of, server, pki) != before
        assert await send_one(peer) == 0
        assert server.tls.reloads == 1
        assert server.tls.expires_at_ms > Pki.now_ms() + 199 * 86_400_000


async def test_the_broker_looks_for_a_new_certificate_by_itself(
    tmp_path: Path, pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("escrowmq.broker.server.TLS_S", 0.01)
    async with serving(tmp_path / "data", tls=pki.fields()) as server:
        pki.server.write(pki.made(CertificateUse.SERVER, "broker", "127.0.0.1"))
        await eventually(lambda: server.tls.reloads == 1)


async def test_files_that_do_not_fit_leave_the_last_good_pair(tmp_path: Path, pki: Pki) -> None:
    async with serving(tmp_path / "data", tls=pki.fields()) as server:
        before = await asyncio.to_thread(serial_of, server, pki)
        good = pki.server.cert.read_bytes(), pki.server.key.read_bytes()
        other = pki.made(CertificateUse.SERVER, "broker", "127.0.0.1")
        for cert, key in ((other.cert, good[1]), (b"", good[1]), (None, good[1])):
            pki.server.key.write_bytes(key)
            if cert is None:
                pki.server.cert.unlink()
            else:
                pki.server.cert.write_bytes(cert)
            await server.tls.reload()
            assert "tls_unusable" in server.tls.error
            assert await asyncio.to_thread(serial_of, server, pki) == before
        pki.server.cert.write_bytes(good[0])
        await server.tls.reload()
        assert server.tls.error == ""
        assert server.tls.reloads == 1


async def test_a_pair_that_is_written_in_two_steps_is_loaded_once(tmp_path: Path, pki: Pki) -> None:
    async with serving(tmp_path / "data", tls=pki.fields()) as server:
        made = pki.made(CertificateUse.SERVER, "broker", "127.0.0.1")
        pki.server.cert.write_bytes(made.cert)
        await server.tls.look()
        pki.server.key.write_bytes(made.key)
        await server.tls.look()
        assert (server.tls.reloads, server.tls.error) == (0, "")
        await server.tls.look()
        await server.tls.look()
        assert (server.tls.reloads, server.tls.error) == (1, "")


async def test_another_ca_for_clients_counts_for_new_connections(tmp_path: Path, pki: Pki) -> None:
    other = Pki(tmp_path / "other")
    fields = pki.fields(asks_clients=True)
    async with serving(tmp_path / "data", tls=fields) as server:
        peer = await Peer.to(server.broker_address, pki.trusting(shows=pki.client))
        assert await send_one(peer) == 0
        pki.ca_file.with_name("ca.pem").write_bytes(other.authority.cert)
        await server.tls.reload()
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.load_verify_locations(cadata=pki.authority.cert.decode())
        trusting.load_cert_chain(other.client.cert, other.client.key)
        assert await send_one(await Peer.to(server.broker_address, trusting)) == 0
        assert await send_one(peer) == 0
