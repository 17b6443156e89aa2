"""Transactions of stock frames at a steady rate, from a process of its own.

    python -m bench.figures.transaction_load HOST:PORT SECONDS RATE [UNDECIDED]

RATE 0 sends as fast as answers come. For UNDECIDED of every 1,000 transactions the producer sends
no decision, and answers their back-checks with commit. Prints one JSON object: transactions per
second, and how long the half messages took to be acknowledged, counted from when each was due.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from functools import partial

from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.client_bodies import Heartbeat, ProducerMembership
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.frames import FrameSplitter, RemotingFrame, encode_request
from escrowmq.protocol.remoting.headers import read_header
from escrowmq.protocol.remoting.send_headers import CheckTransactionHeader, EndTransactionHeader
from tests.unit.broker.wire import COMMIT, END, SEND, ending, half

GROUP = "pay"
CONNECTIONS = 4
WINDOW = 16
BODY = bytes(300)


class Lane(asyncio.Protocol):
    """One connection of a producer."""

    def __init__(self, number: int, undecided: int) -> None:
        self._number = number
        self._undecided = undecided
        self._splitter = FrameSplitter()
        self._sent: dict[int, float] = {}
        self._opaque = 0
        self.waits_ms: list[float] = []
        self.freed: deque[asyncio.Future[None]] = deque()
        self.transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()

    @property
    def under_way(self) -> int:
        """Half messages that are not acknowledged yet."""
        return len(self._sent)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send a heartbeat."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        said = Heartbeat(
            client_id=f"load@{self._number}", producers=(ProducerMembership(group=GROUP),)
        )
        transport.write(encode_request(RequestCode.HEART_BEAT, 0, body=encode_body(said)))

    def connection_lost(self, _error: Exception | None) -> None:
        """Note that everything written has been sent."""
        self.ended.set()

    def send(self, due_at: float) -> None:
        """Send a half message that was due at this time."""
        assert self.transport is not None
        self._opaque += 1
        key = f"7F0000010000{self._number:04X}{time.time_ns():016X}"
        self._sent[self._opaque] = due_at
        self.transport.write(encode_request(SEND, self._opaque, header=half(key), body=BODY))

    def data_received(self, data: bytes) -> None:
        """Decide acknowledged half messages, and answer back-checks."""
        assert self.transport is not None
        now = time.perf_counter()
        for frame in self._splitter.feed(data):
            if frame.is_response and frame.opaque in self._sent:
                self._decide(frame, now)
            elif not frame.is_response and frame.code == RequestCode.CHECK_TRANSACTION_STATE:
                asked = read_header(CheckTransactionHeader, frame.ext)
                self._end(
                    EndTransactionHeader(
                        producer_group=GROUP,
                        half_offset=asked.half_offset,
                        log_offset=asked.log_offset,
                        resolution_bits=COMMIT,
                        is_check_answer=True,
                        unique_key=asked.unique_key or "",
                    )
                )

    def _decide(self, frame: RemotingFrame, now: float) -> None:
        due_at = self._sent.pop(frame.opaque)
        assert frame.code == 0, frame.remark
        self.waits_ms.append((now - due_at) * 1e3)
        if self.freed:
            self.freed.popleft().set_result(None)
        if frame.opaque % 1_000 >= self._undecided:
            self._end(ending(frame, COMMIT))

    def _end(self, header: EndTransactionHeader) -> None:
        assert self.transport is not None
        self.transport.write(encode_request(END, 0, header=header, is_one_way=True))


async def run(address: str, seconds: float, rate: float, undecided: int) -> None:
    """Run the load and print its figures."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    lanes = []
    for number in range(CONNECTIONS):
        _, lane = await loop.create_connection(partial(Lane, number, undecided), host, int(port))
        lanes.append(lane)
    started = time.perf_counter()
    if rate:
        await _steady(lanes, started, seconds, rate)
    else:
        busy = (_closed(lane, started + seconds) for lane in lanes for _ in range(WINDOW))
        await asyncio.gather(*busy)
    took_s = time.perf_counter() - started
    while any(lane.under_way for lane in lanes):  # noqa: ASYNC110 - nothing sets an event
        await asyncio.sleep(0.01)
    for lane in lanes:
        # The last decisions may still wait in the send buffer.
        assert lane.transport is not None
        lane.transport.close()
        await lane.ended.wait()
    waits = sorted(wait for lane in lanes for wait in lane.waits_ms)
    told = {
        "per_s": len(waits) / took_s,
        "p50_ms": waits[len(waits) // 2],
        "p99_ms": waits[len(waits) * 99 // 100],
        "load_cpu_s": time.process_time(),
    }
    print(json.dumps(told), flush=True)


async def _closed(lane: Lane, until: float) -> None:
    while (now := time.perf_counter()) < until:
        freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.freed.append(freed)
        lane.send(now)
        await freed


async def _steady(lanes: list[Lane], started: float, seconds: float, rate: float) -> None:
    count = int(seconds * rate)
    for number in range(count):
        due_at = started + number / rate
        ahead_s = due_at - time.perf_counter()
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
        lanes[number % len(lanes)].send(due_at)


if __name__ == "__main__":
    _, place, length, pace, *rest = sys.argv
    asyncio.run(run(place, float(length), float(pace), int(rest[0]) if rest else 0))
