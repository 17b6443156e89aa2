"""Fill a store with millions of transactions in minutes, for the audit benchmark.

    python -m bench.figures.audit_fill STORE COUNT [FIRST]

Each transaction has one message. Of every 100, 90 are committed, 9 are rolled back and 1 stays
undecided. A command takes 27 µs per transaction, so only the first 100 transactions are made by
commands. The store's own encoders make the frames of the others, and the replayer applies them by
the thousand, as it does at a restart. The log is byte for byte what commands would have written;
``tests/unit/store/test_audit_fill.py`` proves it. With FIRST, the store has that many transactions
already, and the others are added.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures.common import HOST, held, message, opened
from escrowmq.model.resolution import Resolution
from escrowmq.store.log.encoding import MessageEncoder
from escrowmq.store.log.frames import HEAD_BYTES, whole_frame
from escrowmq.store.recovery.recovery import no_collector
from escrowmq.store.recovery.replay import Replayer
from escrowmq.store.store import Store
from escrowmq.transaction.commands import End
from escrowmq.transaction.records import UNNUMBERED, Decided, Placed, Prepared, Span
from escrowmq.transaction.states import State

BODY = b"x" * 100
BY = "bench"
QUEUES = 8
ROLLED_BACK_OF_100 = 9
#: Transactions made by commands: they cover each outcome and each queue.
COMMANDED = 100
#: Transactions that are written and applied in one step.
PART = 2_000


def fill(place: Path, count: int, start_ms: int, *, begin: int = 0) -> None:
    """Make a store with `count` transactions; the first one is held at `start_ms`.

    With `begin`, the store has that many already, and the next one is held after the last record.
    """
    store, _ = opened(place, durability="os")
    if begin:
        start_ms = store.last_at_ms + 1 - begin
    else:
        command(store, range(min(count, COMMANDED)), start_ms)
    replayer = Replayer(store)
    with no_collector():
        for first in range(begin or COMMANDED, count, PART):
            frames = b"".join(framed(store, range(first, min(first + PART, count)), start_ms))
            offset = store.log.end
            store.log.append(frames, start_ms + first)
            store.write()
            assert replayer.feed(memoryview(frames), offset) == len(frames)
            replayer.flush()
            store.sync()
            if store.checkpoint_due:
                store.checkpoint()
    store.close()


def command(store: Store, numbers: range, start_ms: int) -> None:
    """Hold and end transactions one after the other."""
    for number in numbers:
        one = message(number, BODY, queue_id=number % QUEUES)
        half_offset = held(store, (one,), one.unique_key, start_ms + number)
        state = outcome(number)
        if state is not State.PREPARED:
            is_commit = state is State.COMMITTED
            resolution = Resolution.COMMIT if is_commit else Resolution.ROLLBACK
            ending = End(half_offset=half_offset, resolution=resolution, by=BY)
            store.execute(ending, start_ms + number)
    store.sync()


def outcome(number: int) -> State:
    """Final state of a transaction."""
    place = number % 100
    if not place:
        return State.PREPARED
    return State.ROLLED_BACK if place <= ROLLED_BACK_OF_100 else State.COMMITTED


def framed(store: Store, numbers: range, start_ms: int) -> Iterator[bytes]:
    """Yield the frames of these transactions, placed at the end of the log."""
    encoder = MessageEncoder(HOST)
    log_offset, flushed, ends = store.log.end, store.log.flushed, dict(store.core.queue_ends)
    queues = store.core.names.queues_of[message(0, BODY).topic]
    check_after_ms = store.core.policy.check_after_ms
    for number in numbers:
        one = message(number, BODY, queue_id=number % QUEUES)
        queue, at_ms = queues[one.queue_id], start_ms + number
        half = Prepared(
            first=number,
            head=number,
            origin=0,
            transaction_id=one.unique_key,
            number=UNNUMBERED,
            next_check_at_ms=at_ms + check_after_ms,
            deliver_after_ms=[],
            placed=Placed([queue]),
        )
        parts, half = encoder.encode_one(one, half, (log_offset + HEAD_BYTES, at_ms))
        place = (log_offset, at_ms, flushed)
        frame = whole_frame(parts, half.placed.sizes[0], (half,), place, store.seed)
        yield frame
        log_offset += len(frame)
        state = outcome(number)
        if state is State.PREPARED:
            continue
        given = []
        if state is State.COMMITTED:
            given = [Span(queue, ends[queue], 1)]
            ends[queue] += 1
        decision = Decided(number, state, BY, [(number, 1)], given, [])
        frame = whole_frame((), 0, (decision,), (log_offset, at_ms, flushed), store.seed)
        yield frame
        log_offset += len(frame)


if __name__ == "__main__":
    wanted = int(sys.argv[2])
    held_at_ms = time.time_ns() // 1_000_000 - wanted
    fill(Path(sys.argv[1]), wanted, held_at_ms, begin=int(sys.argv[3]) if sys.argv[3:] else 0)
