"""The gRPC port of a broker: its key, its certificate, a real socket, and its end."""

from __future__ import annotations

import asyncio
import ssl
import stat
from pathlib import Path

import pytest

from escrowmq.broker.config import TlsConfig
from escrowmq.broker.net import tls
from escrowmq.broker.net.tls import ServerTls
from escrowmq.broker.server import Server
from escrowmq.broker.state.row_places import KEY_FILE
from escrowmq.model.errors import RequestRefused
from tests.unit.broker.wire import T0, serving

#: What every HTTP/2 client sends first, and empty settings.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
SETTINGS = 4


async def first_frame(server: Server, context: ssl.SSLContext | None = None) -> int:
    """Return the type of the first frame that the broker sends."""
    host, _, port = server.grpc_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(PREFACE)
    head = await reader.readexactly(9)
    writer.close()
    return head[3]


def trusting(cert: Path | None = None) -> ssl.SSLContext:
    """Return a client's context, which trusts this certificate only, or any."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if cert is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(cert)
    return context


async def test_the_port_speaks_http2_with_tls_and_without(tmp_path: Path) -> None:
    async with serving(tmp_path, broker={"grpc_port": 0}) as server:
        assert server.grpc_address.startswith("127.0.0.1:")
        assert await first_frame(server) == SETTINGS
        assert await first_frame(server, trusting()) == SETTINGS
        assert await first_frame(server, trusting(tmp_path / "tls" / "cert.pem")) == SETTINGS


async def test_without_a_port_there_is_no_service(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        assert server.grpc_address == ""
        assert server.broker.telemetry is None


async def test_key_and_certificate_are_kept_and_secret(tmp_path: Path) -> None:
    files = (tmp_path / KEY_FILE, tmp_path / "tls" / "cert.pem", tmp_path / "tls" / "key.pem")
    async with serving(tmp_path, broker={"grpc_port": 0}):
        made = [path.read_bytes() for path in files]
    async with serving(tmp_path, broker={"grpc_port": 0}):
        assert [path.read_bytes() for path in files] == made
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


async def test_a_taken_port_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path / "a", broker={"grpc_port": 0}) as server:
        port = int(server.grpc_address.rpartition(":")[2])
        with pytest.raises(RequestRefused, match="address_unusable"):
            async with serving(tmp_path / "b", broker={"grpc_port": port}):
                pass


async def test_a_damaged_key_is_told(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_bytes(b"short")
    with pytest.raises(RequestRefused, match="secret_damaged"):
        async with serving(tmp_path, broker={"grpc_port": 0}):
            pass


def loaded(config: TlsConfig, data: Path) -> ServerTls:
    """Return the TLS of a broker with these settings."""
    found = ServerTls(config, data)
    found.load("192.0.2.7", T0)
    return found


def test_a_certificate_of_the_operator_is_used(tmp_path: Path) -> None:
    tls.self_signed_files(tmp_path, "192.0.2.7", T0)
    cert, key = str(tmp_path / tls.CERT), str(tmp_path / tls.KEY)
    config = TlsConfig(cert_file=cert, key_file=key, ca_file=cert)
    for protocol in (tls.REMOTING, tls.HTTP, tls.GRPC):
        context = loaded(config, tmp_path / "data").context(protocol)
        assert context is not None
        assert context.verify_mode is ssl.CERT_REQUIRED
    assert not (tmp_path / "data").exists()


def test_tls_can_be_off(tmp_path: Path) -> None:
    assert loaded(TlsConfig(mode="off"), tmp_path).context(tls.GRPC) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [None, b"no certificate"])
def test_files_that_hold_no_certificate_are_told(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.pem"
    if content is not None:
        path.write_bytes(content)
    config = TlsConfig(cert_file=str(path), key_file=str(path))
    with pytest.raises(RequestRefused, match="tls_unusable"):
        loaded(config, tmp_path)


@pytest.mark.parametrize("fields", [{"cert_file": "a"}, {"key_file": "a"}, {"mode": "maybe"}])
def test_half_a_configuration_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(RequestRefused, match="bad_config"):
        TlsConfig(**fields)  # type: ignore[arg-type]  # texts


def test_a_file_that_a_crash_left_unfinished_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "ids.new").write_bytes(b"half")
    assert len(tls.kept_secret(tmp_path / KEY_FILE, 32)) == 32
