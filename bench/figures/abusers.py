"""Harmful clients: ``python -m bench.figures.abusers KIND HOST:PORT`` runs until it is killed.

Each client prepares its requests in advance, so that the work falls on the broker.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable

from bench.figures.grpc_abusers import GRPC_KINDS, Address, is_cut
from bench.figures.grpc_requests import PULLED_TOPIC
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.frames import encode_request
from tests.unit.broker.test_limits import pulling
from tests.unit.broker.wire import SEND, sending

BLOCK_FRAMES = 100
HALF_OPEN = 2_000
SLOW_READERS = 256
SLOW_PULLS = 64
READ_BYTES = 1 << 20


def garbage(address: Address) -> None:
    """Send bytes that are no frame, on a new connection each time."""
    while True:
        with socket.create_connection(address) as one:
            one.sendall(os.urandom(4_096))
            with contextlib.suppress(ConnectionError):
                while one.recv(4_096):
                    pass


def half_open(address: Address) -> None:
    """Send frames that never end, one byte at a time over all connections."""
    ones = [socket.create_connection(address) for _ in range(HALF_OPEN)]
    for one in ones:
        one.sendall((1 << 20).to_bytes(4))
    for at in itertools.count():
        with contextlib.suppress(ConnectionError):
            ones[at % len(ones)].send(b"x")
        time.sleep(0.0005)


def slow_readers(address: Address) -> None:
    """Send pulls and never read the answers."""
    pulls = pull_block(SLOW_PULLS)
    ones: list[socket.socket] = []
    while True:
        # Connections that the broker cut are opened again after a second.
        ones = [one for one in ones if not is_cut(one)]
        while len(ones) < SLOW_READERS:
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            one.connect(address)
            one.sendall(pulls)
            ones.append(one)
        time.sleep(1)


def sends(address: Address) -> None:
    """Send messages as fast as the broker takes them."""
    flood(address, send_block())


def pulls(address: Address) -> None:
    """Send pulls as fast as the broker answers them."""
    flood(address, pull_block(BLOCK_FRAMES))


def many_sends(address: Address) -> None:
    """Send messages over eight connections."""
    for _ in range(7):
        threading.Thread(target=sends, args=(address,), daemon=True).start()
    sends(address)


def flood(address: Address, block: bytes) -> None:
    """Write blocks and discard the answers."""
    one = socket.create_connection(address)
    one.setblocking(False)  # noqa: FBT003 - the call has no keyword
    selector = selectors.DefaultSelector()
    selector.register(one, selectors.EVENT_READ | selectors.EVENT_WRITE)
    rest = memoryview(block)
    while True:
        ((_, ready),) = selector.select()
        if ready & selectors.EVENT_READ and not one.recv(READ_BYTES):
            return
        if ready & selectors.EVENT_WRITE:
            rest = rest[one.send(rest) :] or memoryview(block)


def send_block() -> bytes:
    """Encoded sends, one after the other."""
    header = sending("flood")
    return b"".join(
        encode_request(SEND, number, header=header, body=bytes(300))
        for number in range(BLOCK_FRAMES)
    )


def pull_block(count: int) -> bytes:
    """Encoded pulls, one after the other."""
    header = pulling(topic=PULLED_TOPIC, sys_flag=4)
    return b"".join(
        encode_request(RequestCode.PULL_MESSAGE, number, header=header) for number in range(count)
    )


KINDS: dict[str, Callable[[Address], None]] = {
    "garbage": garbage,
    "half_open": half_open,
    "slow_readers": slow_readers,
    "sends": sends,
    "many_sends": many_sends,
    "pulls": pulls,
    **GRPC_KINDS,
}

if __name__ == "__main__":
    host, _, port = sys.argv[2].rpartition(":")
    print("ready", flush=True)
    KINDS[sys.argv[1]]((host, int(port)))
