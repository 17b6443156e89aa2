"""One address is enough: a broker's or its name server's. Any other gets a clear error."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from escrowmq import AsyncProducer, Consumer, Producer, Received
from escrowmq.broker.server import Server
from escrowmq.cli.main import main
from escrowmq.client.network.foreign_peers import PEERS, kind_of
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import ProtocolViolation, RequestRefused, Unavailable
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.testing import InProcessBroker
from tests.unit.broker.wire import serving
from tests.unit.client.apache_like import play_apache

WAIT_S = 20
TOPIC = "order-paid"
#: The first bytes from a gRPC server: an empty SETTINGS frame of HTTP/2.
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as running:
        running.create_topic(TOPIC)
        yield running


def address_of(broker: InProcessBroker, which: str) -> str:
    assert broker.address != broker.broker_address
    return broker.address if which == "name server" else broker.broker_address


@pytest.fixture(params=["name server", "broker"])
def address(broker: InProcessBroker, request: pytest.FixtureRequest) -> str:
    return address_of(broker, request.param)


def test_a_producer_and_a_consumer_take_either_address(address: str) -> None:
    got: queue.Queue[bytes] = queue.Queue()
    body = address.encode()
    with Producer(address, "orders") as producer:
        producer.send(TOPIC, body)
        with producer.begin() as tx:
            tx.send(TOPIC, body + b"!")
    consumer = Consumer(address, f"shipping-{address.rpartition(':')[2]}")

    @consumer.subscribe(TOPIC)
    def handle(message: Received) -> None:
        got.put(message.body)

    with consumer:
        seen: set[bytes] = set()
        while not {body, body + b"!"} <= seen:
            seen.add(got.get(timeout=WAIT_S))


async def test_an_async_producer_takes_either_address(address: str) -> None:
    async with AsyncProducer(address, "orders") as producer:
        sent = await producer.send(TOPIC, b"1")
        assert sent.topic == TOPIC


def test_commands_take_either_address(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("status", "topic list", "group list", "txn list", "doctor"):
        with pytest.raises(SystemExit) as left:
            main([*words.split(), "--broker", address, "-o", "json"])
        told = capsys.readouterr()
        assert left.value.code in {0, 1}, told.err
        assert isinstance(json.loads(told.out), list | dict)


@contextmanager
def foreign(answer: bytes, *, reads: bool = True) -> Iterator[str]:
    """Run a server that is not ours. It sends `answer` after a read, or at once without `reads`."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            if reads:
                self.request.recv(4_096)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


FOREIGN = [
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", True, "http"),
    (SETTINGS, False, "grpc"),
    (b"\x15\x03\x01\x00\x02\x02\x46", True, "tls"),
    (b"220 mail.example.org ESMTP\r\n", False, "other"),
]


@pytest.mark.parametrize(("answer", "reads", "kind"), FOREIGN)
def test_every_caller_says_what_listens_at_a_foreign_address(
    answer: bytes,
    reads: bool,  # noqa: FBT001 - a case
    kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with foreign(answer, reads=reads) as address:
        with NativeCalls(address) as calls, pytest.raises(ProtocolViolation) as refused:
            calls.call(NativeCode.STATUS)
        assert refused.value.code == "peer_not_broker"
        assert refused.value.fields["address"] == address
        assert PEERS[kind] in str(refused.value)
        with pytest.raises(ProtocolViolation, match="peer_not_broker"), Producer(address, "orders"):
            pass
        with pytest.raises(SystemExit) as left:
            main(["status", "--broker", address])
        assert left.value.code == 6
        assert PEERS[kind] in capsys.readouterr().err


def test_the_http_port_of_a_broker_says_what_it_is(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, broker={"http_port": 0}) as server:
            await asyncio.to_thread(check, server.http_address)

    def check(address: str) -> None:
        with NativeCalls(address) as calls, pytest.raises(ProtocolViolation, match="HTTP server"):
            calls.call(NativeCode.STATUS)
        with pytest.raises(ProtocolViolation, match="HTTP server"), Producer(address, "orders"):
            pass

    asyncio.run(run())


def test_silence_is_not_taken_for_another_program() -> None:
    """A broker that does not answer, or closes the connection, is unavailable and may come back."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with NativeCalls(address, answer_s=0.1) as calls, pytest.raises(Unavailable):
            calls.call(NativeCode.STATUS)
    with foreign(b"") as address, NativeCalls(address) as calls, pytest.raises(Unavailable):
        calls.call(NativeCode.STATUS)


@pytest.mark.parametrize(
    ("head", "is_malformed", "kind"),
    [
        (b"", False, ""),
        (b"HTTP", True, "http"),
        (b"\x00\x00\x12\x04" + bytes(4), False, "grpc"),
        # A remoting frame may have that length, but its header is not empty.
        (b"\x00\x00\x12\x04\x00\x00\x00\x60", False, ""),
        (b"\x00\x00\x12\x04", False, ""),
        (b"\x00\x00\x01\x00", False, ""),
        (b"\x00\x00\x01\x00", True, "other"),
    ],
)
def test_kinds_are_told_apart_by_their_first_bytes(
    head: bytes,
    is_malformed: bool,  # noqa: FBT001 - a case
    kind: str,
) -> None:
    assert kind_of(head, is_malformed=is_malformed) == kind


def broker_of_apache(server: Server, name_servers: str) -> None:
    """Limit the broker to what Apache's know: no routes, but the addresses of name servers."""
    play_apache(server)
    handlers = server.broker._handlers
    handle = handlers[RequestCode.GET_BROKER_CLUSTER_INFO]
    routes = handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC]
    name_port = server.name_address.rpartition(":")[2]

    def only_name_server(handler: Callable[..., None]) -> Callable[..., None]:
        def choose(request: object) -> None:
            local = request.connection._transport.get_extra_info("sockname")  # type: ignore[attr-defined]
            if str(local[1]) == name_port:
                handler(request)
            else:
                request.answer(3, remark="request type not supported")  # type: ignore[attr-defined]

        return choose

    def config(request: object) -> None:
        request.answer(body=f"brokerName=a\nnamesrvAddr={name_servers}\n".encode())  # type: ignore[attr-defined]

    handlers[RequestCode.GET_BROKER_CLUSTER_INFO] = only_name_server(handle)
    handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = only_name_server(routes)
    handlers[RequestCode.GET_BROKER_CONFIG] = config


async def test_a_broker_of_apache_tells_the_sdk_its_name_server(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        broker_of_apache(server, server.name_address)
        async with AsyncProducer(server.broker_address, "orders") as producer:
            assert (await producer.send(TOPIC, b"1")).topic == TOPIC


@pytest.mark.parametrize("told", ["", "itself"])
async def test_a_broker_that_names_no_name_server_is_refused(tmp_path: Path, told: str) -> None:
    async with serving(tmp_path) as server:
        broker_of_apache(server, server.broker_address if told else "")
        with pytest.raises(RequestRefused, match="name_server_unknown"):
            async with AsyncProducer(server.broker_address, "orders"):
                pass
