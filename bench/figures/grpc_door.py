"""Processor time of one unary call: our gRPC door over an empty ``grpc.aio`` server.

Both echo the same bytes, each in a process of its own. The same C-core client calls them in turn
over one connection, as RocketMQ's 5.x clients do, and with metadata like theirs: the request id
and the time change with each call.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import grpc.aio
import uvloop

from bench.figures.common import alternate, report
from escrowmq.broker.config import BrokerConfig, TlsConfig
from escrowmq.broker.net.grpc_call import GrpcCall, GrpcMethods
from escrowmq.broker.net.grpc_door import GrpcDoor
from escrowmq.broker.net.grpc_limits import GrpcLimits
from escrowmq.broker.net.limits import ConnectionLimits
from escrowmq.broker.net.listening import bound_socket
from escrowmq.broker.net.opening import Openings
from escrowmq.broker.net.tls import ServerTls

PATH = "/apache.rocketmq.v2.MessagingService/SendMessage"
BODY = bytes(400)
#: Calls in flight over one connection.
IN_FLIGHT = (1, 16, 64)
CALLS = 4_096
REQUESTS = (BODY,) * CALLS
RUNS = 5
TIMEOUT_S = 30.0
US_PER_NS = 1e-3


def serve_ours() -> None:
    """Serve an echo behind our door until the input ends."""

    def echo(call: GrpcCall, message: bytes) -> None:
        call.header(b"x-mq-client-id")
        call.answer(message)

    async def serve() -> None:
        tls = ServerTls(TlsConfig(mode="off"), Path())
        openings = Openings(tls, ConnectionLimits(BrokerConfig()))
        methods = GrpcMethods(unary={PATH.encode(): echo}, streams={})
        door = GrpcDoor(methods, GrpcLimits(), openings)
        bound = bound_socket("127.0.0.1", 0)
        door.start(bound)
        await _until_told(bound.getsockname()[1])
        await door.close(1.0)

    uvloop.run(serve())


def serve_library() -> None:
    """Serve an echo with ``grpc.aio`` until the input ends."""

    async def echo(message: bytes, _context: object) -> bytes:
        return message

    async def serve() -> None:
        server = grpc.aio.server()
        service, _, method = PATH[1:].partition("/")
        handler = grpc.unary_unary_rpc_method_handler(echo)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await _until_told(port)
        await server.stop(None)

    asyncio.run(serve())


async def _until_told(port: int) -> None:
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)


SERVERS = {"ours": serve_ours, "library": serve_library}


class Server:
    """A server process, and what it costs to call it."""

    def __init__(self, pid: int, target: str) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._target = target

    def cpu_us(self) -> float:
        """Processor time of all threads."""
        threads = (task / "schedstat" for task in self._tasks.iterdir())
        return sum(int(thread.read_text().split()[0]) for thread in threads) * US_PER_NS

    def us_per_call(
        self,
        requests: Sequence[bytes],
        in_flight: int,
        check: Callable[[bytes], None] = lambda _: None,
    ) -> float:
        """Send each request once; return the server's processor time per call."""
        return asyncio.run(self._load(requests, in_flight, check))

    async def _load(
        self, requests: Sequence[bytes], in_flight: int, check: Callable[[bytes], None]
    ) -> float:
        # Without a channel of its own each run would find the last one's connection.
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(self._target, options=options) as channel:
            call = channel.unary_unary(PATH)
            left = iter(enumerate(requests))

            async def calls() -> None:
                for number, request in left:
                    check(await call(request, metadata=metadata(number), timeout=TIMEOUT_S))

            await call(requests[0], metadata=metadata(0), timeout=TIMEOUT_S)
            before = self.cpu_us()
            await asyncio.gather(*(calls() for _ in range(in_flight)))
            return (self.cpu_us() - before) / len(requests)


def metadata(number: int) -> tuple[tuple[str, str], ...]:
    """Return metadata like that of a RocketMQ 5.x client."""
    return (
        ("x-mq-language", "PYTHON"),
        ("x-mq-protocol", "GRPC_V2"),
        ("x-mq-client-version", "5.1.2"),
        ("x-mq-client-id", "bench-host@4711@0@1b2c3d4e"),
        ("x-mq-namespace", ""),
        ("x-mq-date-time", f"20261118T{number:06d}Z"),
        ("x-mq-request-id", str(uuid.uuid4())),
    )


@contextmanager
def server(kind: str) -> Iterator[Server]:
    """Start a server in a process of its own."""
    command = [sys.executable, "-m", "bench.figures.grpc_door", kind]
    with subprocess.Popen(  # noqa: S603 - our own program
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        started = Server(process.pid, f"127.0.0.1:{int(process.stdout.readline())}")
        try:
            yield started
        finally:
            process.stdin.close()


def run() -> None:
    """Print the figures."""
    with server("ours") as ours, server("library") as library:
        for in_flight in IN_FLIGHT:
            mine, bare, ratio = alternate(
                lambda _, n=in_flight: ours.us_per_call(REQUESTS, n),  # type: ignore[misc]
                lambda _, n=in_flight: library.us_per_call(REQUESTS, n),  # type: ignore[misc]
                RUNS,
            )
            details = {"calls": CALLS, "body_bytes": len(BODY), "in_flight": in_flight}
            report("grpc_door_cpu_us", mine, "us", **details)
            report("grpc_aio_echo_cpu_us", bare, "us", **details)
            report("grpc_door_over_aio_echo", ratio, "ratio", **details)


if __name__ == "__main__":
    SERVERS[sys.argv[1]]()
