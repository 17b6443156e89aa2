"""Latency of an ordinary client, alone and beside each kind of abuse.

Abuse of the gRPC port is measured with an ordinary client of each protocol.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Protocol

from bench.figures.abusers import KINDS, pull_block
from bench.figures.common import report, scratch
from bench.figures.grpc_abusers import GRPC_KINDS
from bench.figures.grpc_requests import PULLED_TOPIC, message
from bench.figures.grpc_wire import WireClient
from escrowmq.protocol.grpc.messages import SendMessageRequest
from escrowmq.protocol.remoting.frames import FrameSplitter, encode_request
from tests.fuzz.served import Served, served
from tests.unit.broker.wire import SEND, sending

ROUNDS = 3
MEASURED_S = 2.0
#: Time for the abuse to reach its full rate.
WARM_UP_S = 1.0
PULLED = 64


class Waiting(Protocol):
    """A client that sends one message at a time and waits for each answer."""

    def waits(self, seconds: float) -> list[float]:
        """Send messages for this many seconds; return the latency of each in milliseconds."""
        ...


class OrdinaryGrpc:
    """A gRPC client that sends one message at a time and waits for each answer."""

    def __init__(self, address: str) -> None:
        self._wire = WireClient(address, "bench-ordinary")

    def waits(self, seconds: float) -> list[float]:
        """Send messages for this many seconds; return the latency of each in milliseconds."""
        sent = message(1, topic="ordinary-5")
        request = SendMessageRequest(messages=[sent])
        found = []
        until = time.perf_counter() + seconds
        while (started := time.perf_counter()) < until:
            self._wire.ask("SendMessage", request)
            found.append((time.perf_counter() - started) * 1e3)
        return found


class Ordinary:
    """Client that sends one message at a time and waits for each answer."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._splitter = FrameSplitter()

    def ask(self, request: bytes) -> None:
        """Send a request and wait for its answer."""
        self._socket.sendall(request)
        while not any(
            frame.is_response for frame in self._splitter.feed(self._socket.recv(65_536))
        ):
            pass

    def waits(self, seconds: float) -> list[float]:
        """Send messages for this many seconds; return the latency of each in milliseconds."""
        request = encode_request(SEND, 1, header=sending("ordinary"), body=bytes(300))
        found = []
        until = time.perf_counter() + seconds
        while (started := time.perf_counter()) < until:
            self.ask(request)
            found.append((time.perf_counter() - started) * 1e3)
        return found


@contextmanager
def abused(kind: str, broker: Served) -> Iterator[None]:
    """Run one kind of abuse during the block."""
    address = broker.grpc_address if kind in GRPC_KINDS else broker.address
    command = [sys.executable, "-m", "bench.figures.abusers", kind, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own module
        try:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(WARM_UP_S)
            yield
        finally:
            process.kill()


def run(kinds: Iterable[str] = KINDS) -> None:
    """Report, for each kind of abuse, the client's median latency over its median alone."""
    with scratch() as path:
        for kind in kinds:
            place = path / kind
            place.mkdir()
            with served(place, grpc_port=0) as broker:
                filler = Ordinary(broker.address)
                fill(filler)
                beside(kind, broker, filler, "remoting")
                if kind in GRPC_KINDS:
                    beside(kind, broker, OrdinaryGrpc(broker.grpc_address), "grpc")


def fill(client: Ordinary) -> None:
    """Send the messages that harmful clients pull."""
    big = encode_request(SEND, 1, header=sending(PULLED_TOPIC), body=bytes(4_096))
    for _ in range(PULLED):
        client.ask(big)
    client.ask(pull_block(1))


def beside(kind: str, broker: Served, client: Waiting, protocol: str) -> None:
    """Measure alone and beside the abuse in turn."""
    client.waits(0.5)
    alone, along = [], []
    for _ in range(ROUNDS):
        alone.append(client.waits(MEASURED_S))
        with abused(kind, broker):
            along.append(client.waits(MEASURED_S))
    ratios = [
        statistics.median(worse) / statistics.median(better)
        for better, worse in zip(alone, along, strict=True)
    ]
    all_alone, all_along = sorted(chain(*alone)), sorted(chain(*along))
    report(
        f"beside_{kind}_p50_ratio",
        statistics.median(ratios),
        "x",
        client=protocol,
        alone_p50_ms=_at(all_alone, 0.5),
        alone_p99_ms=_at(all_alone, 0.99),
        beside_p50_ms=_at(all_along, 0.5),
        beside_p99_ms=_at(all_along, 0.99),
        anonymous_mb=broker.usage().anonymous_bytes >> 20,
        connections=broker.sockets(),
    )


def _at(ordered: list[float], part: float) -> float:
    return round(ordered[int(len(ordered) * part)], 3)
