"""CPU per message: encode, append, state table and queue entry."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable

import msgspec

from bench.figures.common import NOW_MS, alternate, commit, held, message, opened, report, scratch
from escrowmq.model.message import Message
from escrowmq.store.frames import HEAD_BYTES, stated_head
from escrowmq.store.store import Store
from escrowmq.transaction.commands import Append

BATCHES, SIZE = 200, 100
Batches = list[tuple[Message, ...]]


def run() -> None:
    """Batches of 100 messages of 300 bytes, against the bare checksums and the write."""
    to_one = [
        tuple(message(batch * SIZE + n, os.urandom(300)) for n in range(SIZE))
        for batch in range(BATCHES)
    ]
    to_four = [
        tuple(msgspec.structs.replace(one, queue_id=n % 4) for n, one in enumerate(batch))
        for batch in to_one
    ]
    with scratch() as path:
        bare = Bare(os.open(path / "bare", os.O_RDWR | os.O_CREAT), to_one)
        store, _ = opened(path / "store", durability="os")
        for figure, work, batches in (
            ("append_batch100_ratio", transactions, to_one),
            ("append_batch100_to_4_queues_ratio", transactions, to_four),
            ("append_ordinary100_ratio", ordinary, to_one),
            ("append_single_transactions_ratio", singles, to_one),
        ):
            measured = Measured(store, work, batches, figure)
            bare.frames = frames_of(store, measured)
            mine, base, ratio = alternate(measured, bare)
            report(figure, ratio, "x", us_per_message=mine, baseline_us=base)
        store.log.close()
        os.close(bare.file)


class Bare:
    """Checksum of each body and of each frame, and the write: the same bytes."""

    def __init__(self, file: int, batches: Batches) -> None:
        self.file = file
        self.frames: list[tuple[bytes, ...]] = []
        self._batches = batches
        self._place = 0

    def __call__(self, _run: int) -> float:
        """CPU time per message, in microseconds."""
        started = time.process_time()
        for batch, written in zip(self._batches, self.frames, strict=True):
            for one in batch:
                zlib.crc32(one.body)
            for frame in written:
                zlib.crc32(frame)
                os.pwrite(self.file, frame, self._place)
                self._place += len(frame)
        return (time.process_time() - started) / (BATCHES * SIZE) * 1e6


class Measured:
    """One way to bring batches of messages into a store."""

    def __init__(
        self,
        store: Store,
        work: Callable[[Store, tuple[Message, ...], str], None],
        batches: Batches,
        name: str,
    ) -> None:
        self._store = store
        self._work = work
        self._batches = batches
        self._name = name

    def __call__(self, run: int) -> float:
        """CPU time per message, in microseconds."""
        started = time.process_time()
        for number, batch in enumerate(self._batches):
            self._work(self._store, batch, f"{self._name}-{run}-{number}")
            self._store.sync()
        return (time.process_time() - started) / (BATCHES * SIZE) * 1e6


def transactions(store: Store, batch: tuple[Message, ...], name: str) -> None:
    """One transaction of all messages, committed."""
    commit(store, held(store, batch, name))


def ordinary(store: Store, batch: tuple[Message, ...], _name: str) -> None:
    """Ordinary messages, visible at once."""
    store.execute(Append(messages=batch), NOW_MS)


def singles(store: Store, batch: tuple[Message, ...], name: str) -> None:
    """A transaction of its own for each message, committed."""
    halves = [held(store, (one,), name + one.unique_key) for one in batch]
    for half_offset in halves:
        commit(store, half_offset)


def frames_of(store: Store, work: Measured) -> list[tuple[bytes, ...]]:
    """The frames that one run writes, by batch."""
    start = store.log.end
    work(-2)
    frames = []
    while start < store.log.end:
        head = stated_head(store.log.read(start, HEAD_BYTES))
        assert head is not None
        frames.append(store.log.read(start, head.length))
        start += head.length
    each = len(frames) // BATCHES
    # The very first frame may also name the queue; it belongs to its batch all the same.
    return [tuple(frames[at : at + each]) for at in range(0, each * BATCHES, each)]
