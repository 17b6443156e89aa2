"""CPU per message: encode, append, state table and queue entry."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable

from bench.figures.common import NOW_MS, alternate, commit, held, message, opened, report, scratch
from escrowmq.model.message import SentMessage
from escrowmq.store.log.frames import HEAD_BYTES, stated_head
from escrowmq.store.store import Store
from escrowmq.transaction.commands import Append

BATCHES, SIZE = 20, 100
#: Many short runs, because a brief slowdown of the machine then spoils only a few of them.
RUNS = 101

Batch = tuple[SentMessage, ...]


def run() -> None:
    """Append batches of 100 messages of 300 bytes, and compare with bare checksums and writes."""
    with scratch() as path:
        bare = Bare(os.open(path / "bare", os.O_RDWR | os.O_CREAT))
        store, _ = opened(path / "store", durability="os")
        for figure, work, queues in (
            ("append_batch100_ratio", transactions, 1),
            ("append_batch100_to_4_queues_ratio", transactions, 4),
            ("append_ordinary100_ratio", ordinary, 1),
            ("append_single_transactions_ratio", singles, 1),
        ):
            measured = Measured(store, work, queues, figure)
            bare.frames = frames_of(store, measured)
            mine, base, ratio = alternate(measured, bare, RUNS)
            report(figure, ratio, "x", us_per_message=mine, baseline_us=base)
        store.log.close()
        os.close(bare.file)


def fresh(number: int, queues: int) -> Batch:
    """Make a new batch; like a broker's, it is still in the processor's cache."""
    first = number * SIZE
    return tuple(message(first + n, os.urandom(300), queue_id=n % queues) for n in range(SIZE))


class Bare:
    """Baseline that checksums each body and each frame, and writes the same bytes."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.frames: list[tuple[bytes, ...]] = []
        self._place = 0

    def __call__(self, _run: int) -> float:
        """CPU time per message, in microseconds."""
        took = 0.0
        for number, written in enumerate(self.frames):
            batch = fresh(number, 1)
            frames = [bytearray(frame) for frame in written]
            started = time.process_time()
            for one in batch:
                zlib.crc32(one.body)
            for frame in frames:
                zlib.crc32(frame)
                os.pwrite(self.file, frame, self._place)
                self._place += len(frame)
            took += time.process_time() - started
        return took / (BATCHES * SIZE) * 1e6


class Measured:
    """One way to append batches of messages to a store."""

    def __init__(
        self, store: Store, work: Callable[[Store, Batch, str], None], queues: int, name: str
    ) -> None:
        self._store = store
        self._work = work
        self._queues = queues
        self._name = name

    def __call__(self, run: int) -> float:
        """CPU time per message, in microseconds."""
        took = 0.0
        for number in range(BATCHES):
            batch = fresh(number, self._queues)
            started = time.process_time()
            self._work(self._store, batch, f"{self._name}-{run}-{number}")
            self._store.sync()
            took += time.process_time() - started
        return took / (BATCHES * SIZE) * 1e6


def transactions(store: Store, batch: Batch, name: str) -> None:
    """Hold one transaction of all messages, and commit it."""
    commit(store, held(store, batch, name))


def ordinary(store: Store, batch: Batch, _name: str) -> None:
    """Append ordinary messages, which are visible at once."""
    store.execute(Append(messages=batch), NOW_MS)


def singles(store: Store, batch: Batch, name: str) -> None:
    """Hold and commit each message in a transaction of its own."""
    halves = [held(store, (one,), name + one.unique_key) for one in batch]
    for half_offset in halves:
        commit(store, half_offset)


def frames_of(store: Store, work: Measured) -> list[tuple[bytes, ...]]:
    """Return the frames that one run writes, by batch."""
    start = store.log.end
    work(-2)
    frames = []
    while start < store.log.end:
        head = stated_head(store.log.read(start, HEAD_BYTES))
        assert head is not None
        frames.append(store.log.read(start, head.length))
        start += head.length
    each = len(frames) // BATCHES
    # The first frame may also contain the queue's name; it still belongs to the first batch.
    return [tuple(frames[at : at + each]) for at in range(0, each * BATCHES, each)]
