"""Messages that are held back are counted, wherever their rows are."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from escrowmq.store.config import StoreConfig
from escrowmq.store.table.undecided import _counted, held_back, prepared_by_origin
from escrowmq.testing import Engine, message

CHUNK_ROWS = 64


def counts(engine: Engine) -> dict[str, int]:
    origins = engine.core.names.origins
    found = prepared_by_origin(engine.store.table)
    return {origins[number].group: count for number, count in found.items()}


def test_each_undecided_transaction_counts_once_for_its_group() -> None:
    engine = Engine()
    assert counts(engine) == {}
    engine.prepare("one", group="pay")
    engine.prepare("many", message(), message(), number=0, group="pay")
    engine.prepare("many", message(), number=1, group="pay")
    engine.prepare("other", group="shop")
    for transaction_id, end in (("c", engine.commit), ("r", engine.rollback), ("p", engine.park)):
        end(engine.prepare(transaction_id, group="pay").half_offset)
    engine.append(message(deliver_at_ms=engine.clock.now_ms() + 1))
    assert counts(engine) == {"pay": 2, "shop": 1}


def test_transactions_that_outlived_their_chunk_are_counted() -> None:
    engine = Engine(config=StoreConfig(chunk_rows=CHUNK_ROWS, id_window_ms=0))
    old = engine.prepare("old", group="pay").half_offset
    for number in range(CHUNK_ROWS):
        engine.rollback(engine.prepare(f"t{number}").half_offset)
        engine.clock.advance(seconds=1)
    engine.checkpoint()
    assert old in engine.store.table.survivors.rows
    assert 0 not in engine.store.table.chunks
    assert counts(engine) == {"pay": 1}
    engine.park(old)
    assert counts(engine) == {}


def held(engine: Engine) -> tuple[dict[str, int], dict[str, int]]:
    """Undecided and timed messages by topic."""
    found = held_back(engine.store.table)
    queues = engine.store.queues
    undecided, timed = (
        {queues[number].topic: count for number, count in counts.items()}
        for counts in (found.undecided, found.timed)
    )
    return undecided, timed


def test_each_message_that_is_held_back_counts_for_its_queue() -> None:
    engine = Engine()
    assert held(engine) == ({}, {})
    engine.prepare("many", message(topic="a"), message(topic="a"), message(topic="b"))
    engine.commit(engine.prepare("c", message(topic="a")).half_offset)
    engine.rollback(engine.prepare("r", message(topic="a")).half_offset)
    engine.append(message(topic="b"))
    engine.append(message(topic="b", deliver_at_ms=engine.clock.now_ms() + 1))
    assert held(engine) == ({"a": 2, "b": 1}, {"b": 1})


def test_messages_that_outlived_their_chunk_are_held_back_too() -> None:
    engine = Engine(config=StoreConfig(chunk_rows=4 * CHUNK_ROWS, id_window_ms=0))
    engine.prepare("old", message(topic="a"))
    engine.append(message(topic="b", deliver_at_ms=engine.clock.now_ms() + 10**9))
    parked = engine.prepare("parked", message(topic="c")).half_offset
    engine.park(parked)
    for number in range(4 * CHUNK_ROWS):
        engine.rollback(engine.prepare(f"t{number}").half_offset)
        engine.clock.advance(seconds=1)
    engine.checkpoint()
    assert 0 not in engine.store.table.chunks
    assert held(engine) == ({"a": 1}, {"b": 1})


@pytest.mark.parametrize(
    "numbers",
    [
        [],
        [7],
        [3, 3, 5, 4, 3],
        # Far apart: a table of all numbers between them would take 16 GB.
        [0, 2_000_000_000, 0, 5],
    ],
)
def test_numbers_are_counted_whether_they_are_close_together_or_not(numbers: list[int]) -> None:
    assert _counted(np.array(numbers, dtype=np.uint32)) == Counter(numbers)
