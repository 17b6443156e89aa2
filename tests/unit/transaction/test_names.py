"""A name gets the next number once and keeps it."""

from __future__ import annotations

from escrowmq.transaction.memory.names import Names
from escrowmq.transaction.records import NamedQueue


def test_a_new_queue_gets_the_next_number_and_is_noted() -> None:
    names = Names()
    new: dict[tuple[str, int], NamedQueue] = {}
    assert names.queue_of("orders", 0, new) == 0
    assert names.queue_of("orders", 1, new) == 1
    assert names.queue_of("orders", 0, new) == 0
    assert list(new.values()) == [NamedQueue(0, "orders", 0), NamedQueue(1, "orders", 1)]
    # The lookup changed nothing.
    assert names.queues == {}


def test_a_queue_keeps_its_number_for_ever() -> None:
    names = Names()
    names.apply(NamedQueue(0, "orders", 3))
    new: dict[tuple[str, int], NamedQueue] = {}
    assert names.queue_of("orders", 3, new) == 0
    assert names.queue_of("stock", 0, new) == 1
    assert new == {("stock", 0): NamedQueue(1, "stock", 0)}


def test_a_name_that_is_known_already_changes_nothing() -> None:
    names = Names()
    for _ in range(2):
        names.apply(NamedQueue(0, "orders", 0))
        names.apply(NamedQueue(1, "orders", 1))
    assert [queue.id for queue in names.queues.values()] == [0, 1]
    assert names.queues_of == {"orders": {0: 0, 1: 1}}
    assert [names.number_of("orders", queue_id) for queue_id in range(3)] == [0, 1, None]
    assert names.number_of("stock", 0) is None
