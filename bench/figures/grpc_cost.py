"""Processor time of SendMessage: a whole broker over an empty ``grpc.aio`` server.

The broker checks each message, stores it and waits for its flush before it answers. The library's
server sends the same bytes back. The same C-core client calls both in turn over one connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from bench.figures.common import alternate, report
from bench.figures.grpc_door import Server, server
from bench.figures.grpc_requests import BODY_BYTES, QUEUES, TOPIC, message
from escrowmq.protocol.grpc.enums import GrpcCode
from escrowmq.protocol.grpc.messages import SendMessageRequest, SendMessageResponse
from tests.interop.escrow import Escrow

#: Calls in flight over one connection.
IN_FLIGHT = (16, 64)
CALLS = 4_096
RUNS = 5

_numbers = count()


def run() -> None:
    """Print the figures."""
    with broker() as ours, server("library") as library:
        for in_flight in IN_FLIGHT:
            mine, bare, ratio = alternate(
                lambda _, n=in_flight: ours.us_per_call(requests(), n, check),  # type: ignore[misc]
                lambda _, n=in_flight: library.us_per_call(requests(), n),  # type: ignore[misc]
                RUNS,
            )
            report(
                "grpc_cpu_over_aio_echo",
                ratio,
                "x",
                wanted="<= 0.3",
                ours_us=round(mine, 1),
                aio_echo_us=round(bare, 1),
                in_flight=in_flight,
                body_bytes=BODY_BYTES,
                calls=CALLS,
            )


@contextmanager
def broker() -> Iterator[Server]:
    """Run our broker with its default settings."""
    with Escrow() as escrow:
        escrow.create_topic(TOPIC, queues=QUEUES)
        assert escrow.serving is not None
        yield Server(escrow.serving.pid, escrow.grpc_address)


def requests() -> list[bytes]:
    """Encode messages as the official Java client sends them."""
    return [request(next(_numbers)) for _ in range(CALLS)]


def request(number: int) -> bytes:
    """Encode a request with one message."""
    return SendMessageRequest(messages=[message(number)]).SerializeToString()


def check(answer: bytes) -> None:
    """Require that the broker stored the message."""
    status = SendMessageResponse.FromString(answer).status
    assert status.code == GrpcCode.OK, status
