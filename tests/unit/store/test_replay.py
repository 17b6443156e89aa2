"""A log that is replayed as columns gives what it gave when it was written, record by record."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from escrowmq.model.message import Message
from escrowmq.store.config import StoreConfig
from escrowmq.store.replay import GATHERED_MAX
from escrowmq.testing import Engine, FaultyDisk, ManualClock
from escrowmq.transaction.commands import Append, CheckSent, Command, End, Park, Prepare
from escrowmq.transaction.states import Resolution

RESOLUTIONS = (Resolution.COMMIT, Resolution.COMMIT, Resolution.ROLLBACK)


def one(number: int, **fields: Any) -> Message:  # noqa: ANN401 - fields of Message
    """A message that can be found by two keys."""
    return Message(
        topic=f"topic-{number % 3}",
        queue_id=number % 2,
        body=b"%d" % number,
        unique_key=f"u{number}",
        keys=(f"k{number}",),
        properties=f"UNIQ_KEY\x01u{number}\x02KEYS\x01k{number}\x02".encode(),
        **fields,
    )


def state_of(engine: Engine) -> dict[str, object]:
    """Everything that a restart must bring back."""
    store = engine.store
    rows = [store.table.get(row) for row in range(store.table.end)]
    return {
        "rows": [half and msgspec.structs.replace(half, op_offset=-1) for half in rows],
        "decided_by": [
            store.table.decided_by(half) for half in rows if half and half.state in (1, 2)
        ],
        "queues": [
            (queue.start, queue.end, queue.entries(queue.start, 10**6)) for queue in store.queues
        ],
        "ends": store.core.queue_ends,
        "needed": store.table.needed,
        "due": store.table.due(engine.clock.now_ms() + 10**9, 10**6),
        "found": [engine.reader.find("topic-1", f"k{n}", limit=9) for n in range(0, 60, 7)],
        "ids": [store.table.find(f"t{n}") for n in range(60)],
        "last_at_ms": store.last_at_ms,
    }


def rebuilt(engine: Engine, **changes: int) -> Engine:
    """The same store, from nothing but its log."""
    assert isinstance(engine.disk, FaultyDisk)
    files = {
        path: content
        for path, content in engine.disk.snapshot().items()
        if not path.startswith("checkpoint")
    }
    again = Engine(
        FaultyDisk.load(files),
        clock=ManualClock(engine.clock.now_ms()),
        config=StoreConfig(chunk_rows=64, **changes),
    )
    assert again.found.replayed_from == 0
    return again


def random_command(rng: Random, number: int, undecided: list[int], engine: Engine) -> Command:
    """Mostly transactions of one message, and now and then something else."""
    kind = rng.random()
    if undecided and kind < 0.45:
        half_offset = undecided.pop(rng.randrange(len(undecided)))
        return End(half_offset=half_offset, resolution=rng.choice(RESOLUTIONS), by=f"p{number}")
    if kind < 0.85:
        undecided.append(engine.store.table.end)
        return Prepare(group="g", transaction_id=f"t{number}", messages=(one(number),))
    if kind < 0.9:
        undecided.append(engine.store.table.end)
        many = tuple(one(number + n) for n in range(rng.randrange(2, 5)))
        return Prepare(group="h", transaction_id=f"t{number}", messages=many)
    if kind < 0.93 and undecided:
        return CheckSent(half_offset=rng.choice(undecided), client="c")
    if kind < 0.95 and undecided:
        return Park(half_offset=rng.choice(undecided), reason="test")
    if kind < 0.97:
        undecided.append(engine.store.table.end)
        late = one(number, deliver_after_ms=50)
        return Prepare(group="g", transaction_id=f"t{number}", messages=(late,))
    return Append(messages=(one(number),))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("checkpoint_bytes", [4_096, 2**30])
def test_a_replayed_log_gives_the_same_store(seed: int, checkpoint_bytes: int) -> None:
    rng = Random(seed)
    engine = Engine(config=StoreConfig(chunk_rows=64, segment_bytes_max=16_384))
    undecided: list[int] = []
    for number in range(400):
        engine.clock.advance(ms=rng.randrange(20))
        engine.submit(random_command(rng, number, undecided, engine))
        if not rng.randrange(25):
            engine.release_due()
    again = rebuilt(engine, checkpoint_bytes=checkpoint_bytes)
    assert state_of(again) == state_of(engine)


def test_more_than_is_gathered_at_once_is_replayed_in_order() -> None:
    engine = Engine(config=StoreConfig(chunk_rows=64))
    count = GATHERED_MAX + 100
    engine.submit_all(
        Prepare(group="g", transaction_id=f"t{n}", messages=(one(n),)) for n in range(count)
    )
    engine.submit_all(
        End(half_offset=n, resolution=RESOLUTIONS[n % 3], by="p") for n in range(0, count, 2)
    )
    assert state_of(rebuilt(engine)) == state_of(engine)


def test_decisions_of_rows_that_were_there_before_the_replay_are_applied() -> None:
    engine = Engine(config=StoreConfig(chunk_rows=64))
    engine.submit_all(
        Prepare(group="g", transaction_id=f"t{n}", messages=(one(n),)) for n in range(200)
    )
    engine.store.checkpoint()
    engine.submit_all(
        End(half_offset=n, resolution=RESOLUTIONS[n % 3], by="p") for n in range(200)
    )
    again = engine.crash()
    assert again.found.frames == 200
    assert state_of(again) == state_of(engine)
