"""Very many connections, and very many topics."""

from __future__ import annotations

import socket
import statistics
import time
from contextlib import ExitStack

from bench.figures.common import report, scratch
from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.client_bodies import Heartbeat, ProducerMembership
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.frames import FrameSplitter, encode_request
from tests.fuzz.served import Served, served
from tests.unit.broker.wire import SEND, sending

CONNECTIONS = 9_500
TOPICS = 10_000
FEW_TOPICS = 10
ROUND = 5_000
ROUNDS = 5
#: Sends in flight at a time.
WINDOW = 64


def connections() -> None:
    """Report the broker's memory with idle connections that send heartbeats, scaled to 10,000."""
    with scratch() as path, served(path) as broker, ExitStack() as stack:
        before = broker.usage().anonymous_bytes
        host, _, port = broker.address.rpartition(":")
        ones = []
        for number in range(CONNECTIONS):
            one = stack.enter_context(socket.create_connection((host, int(port))))
            one.sendall(heartbeat(number))
            ones.append(one)
        for one in ones:
            one.recv(4_096)
        started = time.perf_counter()
        for number, one in enumerate(ones):
            one.sendall(heartbeat(number))
        for one in ones:
            one.recv(4_096)
        grown = (broker.usage().anonymous_bytes - before) * 10_000 / CONNECTIONS
        report(
            "connections_10k_mb",
            (before + grown) / 1e6,
            "MB",
            connections=CONNECTIONS,
            bytes_each=round(grown / 10_000),
            heartbeats_per_s=round(CONNECTIONS / (time.perf_counter() - started)),
            open_sockets=broker.sockets(),
        )


def heartbeat(number: int) -> bytes:
    """Encode a heartbeat of a producer with a group of its own."""
    said = Heartbeat(
        client_id=f"192.0.2.1@{number}", producers=(ProducerMembership(group=f"group-{number}"),)
    )
    return encode_request(RequestCode.HEART_BEAT, number, body=encode_body(said))


def topics() -> None:
    """Report CPU time per send with 10,000 topics in use, over CPU time with 10."""
    with scratch() as path:
        places = [path / "few", path / "many"]
        for place in places:
            place.mkdir()
        with (
            served(places[0], "store.durability=os") as few,
            served(places[1], "store.durability=os") as many,
        ):
            fill(few, FEW_TOPICS)
            fill(many, TOPICS)
            pairs = [
                (cpu_us_per_send(few, FEW_TOPICS, number), cpu_us_per_send(many, TOPICS, number))
                for number in range(ROUNDS)
            ]
            files = many.files()
            started = time.perf_counter()
            code = many.stop()
            stopped_s = time.perf_counter() - started
            report(
                "topics_10k_send_ratio",
                statistics.median(more / less for less, more in pairs),
                "x",
                few_us=round(statistics.median(less for less, _ in pairs), 1),
                many_us=round(statistics.median(more for _, more in pairs), 1),
            )
            report("open_files", files, "files", topics=TOPICS)
            report("stop_10k_topics_s", stopped_s, "s", exit_code=code)


def fill(broker: Served, count: int) -> None:
    """Write to each topic once."""
    pipelined(broker, [f"topic-{number}" for number in range(count)])


def cpu_us_per_send(broker: Served, count: int, seed: int) -> float:
    """The broker's CPU time per send, with sends spread over its topics."""
    # The step is coprime to the count, so it reaches every topic.
    names = [f"topic-{(seed + number * 7_919) % count}" for number in range(ROUND)]
    before = broker.usage().cpu_ms
    pipelined(broker, names)
    return (broker.usage().cpu_ms - before) * 1_000 / ROUND


def pipelined(broker: Served, names: list[str]) -> None:
    """Send a message to each of these topics, many at a time."""
    host, _, port = broker.address.rpartition(":")
    with socket.create_connection((host, int(port))) as one:
        splitter = FrameSplitter()
        for first in range(0, len(names), WINDOW):
            some = names[first : first + WINDOW]
            one.sendall(
                b"".join(
                    encode_request(SEND, 1, header=sending(name), body=bytes(300)) for name in some
                )
            )
            answered = 0
            while answered < len(some):
                for frame in splitter.feed(one.recv(65_536)):
                    assert frame.code == 0, frame.remark
                    answered += 1
