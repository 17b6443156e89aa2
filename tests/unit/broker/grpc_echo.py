"""An echo service behind the gRPC door, for tests, the fuzzer, benchmarks and h2spec.

``python -m tests.unit.broker.grpc_echo TABLE_BYTES`` serves it until its input ends, and prints its
port; clients may use a dynamic table of that many bytes.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from escrowmq.broker.config import BrokerConfig, TlsConfig, TlsMode
from escrowmq.broker.net.grpc_call import GrpcCall, GrpcMethods, StreamEvents
from escrowmq.broker.net.grpc_door import GrpcDoor
from escrowmq.broker.net.grpc_limits import GrpcLimits
from escrowmq.broker.net.limits import ConnectionLimits
from escrowmq.broker.net.listening import bound_socket
from escrowmq.broker.net.opening import Openings
from escrowmq.broker.net.tls import ServerTls

ECHO = "/test.Echo/Unary"
MANY = "/test.Echo/Many"
CHAT = "/test.Echo/Chat"
SILENT = "/test.Echo/Silent"
FAIL = "/test.Echo/Fail"
HEADER = "/test.Echo/Header"
FIELD = b"x-mq-client-id"
MANY_COUNT = 100
GRACE_S = 5.0


class Heard:
    """Events of calls, as tests look at them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.calls: list[GrpcCall] = []
        self._changed = asyncio.Event()

    def note(self, what: str) -> None:
        self.counts[what] += 1
        self._changed.set()

    async def wait_for(self, what: str, count: int = 1) -> None:
        """Wait until something has happened this often."""
        async with asyncio.timeout(10):
            while self.counts[what] < count:
                self._changed.clear()
                await self._changed.wait()


class Watching:
    """Notes the end of a call."""

    def __init__(self, call: GrpcCall, heard: Heard) -> None:
        self.call = call
        self.heard = heard
        heard.calls.append(call)
        heard.note("opened")

    def on_message(self, message: bytes) -> None:
        self.heard.note("message")
        self.call.send(message)

    def on_half_close(self) -> None:
        self.heard.note("half_close")
        self.call.end()

    def on_closed(self) -> None:
        self.heard.note("closed")


def methods(heard: Heard) -> GrpcMethods:
    """Return the echo service."""

    def echo(call: GrpcCall, message: bytes) -> None:
        call.answer(message)

    def many(call: GrpcCall, message: bytes) -> StreamEvents:
        for _ in range(MANY_COUNT):
            call.send(message)
        call.end()
        return Watching(call, heard)

    def silent(call: GrpcCall, _message: bytes) -> StreamEvents:
        return Watching(call, heard)

    def fail(_call: GrpcCall, message: bytes) -> None:
        raise RuntimeError(message)

    def header(call: GrpcCall, _message: bytes) -> None:
        call.answer(call.header(FIELD) or b"")

    def chat(call: GrpcCall) -> StreamEvents:
        return Watching(call, heard)

    return GrpcMethods(
        unary={
            ECHO.encode(): echo,
            MANY.encode(): many,
            SILENT.encode(): silent,
            FAIL.encode(): fail,
            HEADER.encode(): header,
        },
        streams={CHAT.encode(): chat},
    )


class Echo:
    """A running echo service."""

    def __init__(self, door: GrpcDoor, heard: Heard, port: int) -> None:
        self.door = door
        self.heard = heard
        self.port = port
        self.target = f"127.0.0.1:{port}"

    @property
    def counts(self) -> Counter[str]:
        """How often each limit was reached."""
        return self.door.shared.counts


@asynccontextmanager
async def echo_service(
    limits: GrpcLimits | None = None,
    *,
    shared: BrokerConfig | None = None,
    tls: TlsConfig | None = None,
) -> AsyncIterator[Echo]:
    """Serve the echo service on a free port."""
    heard = Heard()
    budget = ConnectionLimits(shared or BrokerConfig())
    door = GrpcDoor(methods(heard), limits or GrpcLimits(), openings_with(tls, budget))
    bound = bound_socket("127.0.0.1", 0)
    door.start(bound)
    try:
        yield Echo(door, heard, bound.getsockname()[1])
    finally:
        await door.close(GRACE_S)


CERTIFICATE = Path(__file__).with_name("grpc_test_certificate.pem")
KEY = Path(__file__).with_name("grpc_test_key.pem")


def openings_with(tls: TlsConfig | None, budget: ConnectionLimits) -> Openings:
    """Return what new connections share; without settings, TLS is off."""
    server_tls = ServerTls(tls or TlsConfig(mode="off"), CERTIFICATE.parent)
    server_tls.load("127.0.0.1", 0)
    return Openings(server_tls, budget)


def tls_config(mode: TlsMode = "optional") -> TlsConfig:
    """Return the settings of a broker with the tests' certificate."""
    return TlsConfig(mode=mode, cert_file=str(CERTIFICATE), key_file=str(KEY))


async def serve(header_table_bytes: int) -> None:
    """Serve, with and without TLS, until the input ends."""
    limits = GrpcLimits(header_table_bytes=header_table_bytes)
    async with echo_service(limits, tls=tls_config()) as echo:
        print(echo.port, flush=True)  # noqa: T201 - for the parent process
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
