"""The process that is killed: a writer on real files, for clients on sockets that it inherits.

    python -m tests.crash.victim DATA DESCRIPTOR... [--die-at N --part F] [--plant BUG]

Files are as small as possible and retention is short, so that segments, chunks, checkpoints,
retention and carried half messages all happen within a second. Work that is due by time is started
after a number of answers, because the clients never pause.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from escrowmq.broker.write.retaining import Retaining
from escrowmq.broker.write.writer import Writer
from escrowmq.model.clock import SystemClock
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.lock import DirectoryLock
from escrowmq.store.reading.reader import StoreReader
from escrowmq.store.recovery.recovery import open_store
from escrowmq.store.store import Store
from escrowmq.transaction import commands as c
from escrowmq.transaction.policy import CheckPolicy
from tests.crash.kill_disk import DyingDisk, LaggingDisk
from tests.crash.kill_plants import PLANTS, DoubleWriter, forget_the_needed
from tests.crash.kill_wire import Answered, Pull, Written, answer_to, packed, receive

CONFIG = StoreConfig(
    segment_bytes_max=8_192,
    checkpoint_bytes=16_384,
    chunk_rows=8,
    retention_ms=1_500,
    copy_after_ms=300,
    id_window_ms=200,
)
#: No back-check comes due, and a repeated half message is recognized however slow the machine is.
POLICY = CheckPolicy(check_after_ms=3_600_000, checks_max=255, resend_window_ms=3_600_000)
HOST = b"\x0a\x00\x00\x01\x00\x00\x2a\x9f"

RELEASED_EVERY = 20
RETAINED_EVERY = 50
_DUE_MAX = 100
_PULLED_MAX = 200
_PULLED_BYTES_MAX = 100_000


class Victim:
    """Serves every connection until it is killed."""

    def __init__(self, store: Store, writer: Writer) -> None:
        self._writer = writer
        self._reader = StoreReader(store)
        self._clock = SystemClock()
        self._retaining = Retaining(store, writer, self._clock.now_ms)
        self._answered = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, descriptor: int) -> None:
        """Answer one client, with any number of requests in flight."""
        reader, stream = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
        while True:
            number, asked = await receive(reader)
            self._start(self._answer(stream, number, asked))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = task.exception()
        if error is not None and not self._writer.failed.done():
            self._writer.failed.set_result(error)

    async def _answer(self, stream: asyncio.StreamWriter, number: int, asked: object) -> None:
        answer: Answered
        if isinstance(asked, Pull):
            answer = self._reader.pull(
                asked.topic,
                asked.queue_id,
                asked.offset,
                count_max=_PULLED_MAX,
                bytes_max=_PULLED_BYTES_MAX,
            )
        else:
            assert isinstance(asked, Written)
            answer = answer_to(await self._writer.submit(asked))
        stream.write(packed(number, answer))
        self._answered += 1
        if self._answered % RELEASED_EVERY == 0:
            self._start(self._release())
        if self._answered % RETAINED_EVERY == 0:
            self._start(self.retain())

    async def _release(self) -> None:
        now_ms = self._clock.now_ms()
        rows = await self._writer.alone(lambda store: store.table.due(now_ms, _DUE_MAX))
        await self._writer.submit(c.Release(half_offsets=tuple(rows)))

    async def retain(self) -> None:
        """Delete what is old."""
        await self._retaining.run()


async def run(store: Store, descriptors: list[int], plant: str) -> None:
    """Serve until the process is killed or the store fails."""
    clock = SystemClock()
    writer = DoubleWriter(store, clock) if plant == "decide_twice" else Writer(store, clock)
    if plant == "forget_the_needed":
        forget_the_needed(store)
    victim = Victim(store, writer)
    # Lives are short, so retention first deletes what became old in earlier ones.
    await victim.retain()
    served = [asyncio.create_task(victim.serve(descriptor)) for descriptor in descriptors]
    everything: list[asyncio.Future[Any]] = [*served, writer.failed]
    await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
    if writer.failed.done():
        raise writer.failed.result()


def main() -> None:
    """Open the store and serve it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("descriptors", type=int, nargs="+")
    parser.add_argument("--die-at", type=int, default=0)
    parser.add_argument("--part", type=float, default=0.0)
    parser.add_argument("--plant", choices=PLANTS, default="")
    parser.add_argument("--state-store", default="table")
    parser.add_argument("--state-url", default="")
    arguments = parser.parse_args()
    kind = LaggingDisk if arguments.plant == "reply_before_write" else DyingDisk
    with DirectoryLock(arguments.data):
        disk = kind(arguments.data / "store", die_at=arguments.die_at, part=arguments.part)
        policy = replace(POLICY, state_store=arguments.state_store, state_url=arguments.state_url)
        store, _ = open_store(disk, CONFIG, policy, HOST)
        asyncio.run(run(store, arguments.descriptors, arguments.plant))
    # Reached only if a client hangs up, which it does when the test gives up.
    sys.exit(0)


if __name__ == "__main__":
    main()
