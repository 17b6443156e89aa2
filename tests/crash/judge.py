"""Compares an open store with the expected world; raises ``Wrong`` with the first difference.

Everything is read as users of the store read it: pulls, rows, keys, batches. ``picture`` returns
the same as a value, to compare two recoveries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from escrowmq.protocol.message.stored_message import decode
from escrowmq.store.reading.reader import ReadStatus, StoreReader
from escrowmq.store.store import Store
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST, Half
from tests.crash.expectations import is_forgettable
from tests.crash.model import NEVER, Queue, Row, Seen, Transaction, World, Wrong, seen
from tests.crash.state_stores import judge_states

#: The first offset of each queue that can still be read; a missing queue starts at 0.
Starts = Mapping[Queue, int]

_EVERYTHING = 1_000_000
_LOOKED_UP = 3


def starts_of(store: Store) -> dict[Queue, int]:
    """Return where the queues start."""
    return {
        (queue.topic, queue.queue_id): queue.start for queue in store.queues.values() if queue.start
    }


def judge(
    store: Store, world: World, allowed: Sequence[Starts] = ({},), *, rebuilt: bool = False
) -> None:
    """Raise ``Wrong`` at the first difference.

    A table that was rebuilt from the log may have forgotten who made a decision, but not the
    decision.
    """
    if starts_of(store) not in allowed:
        raise Wrong(f"queues start at {starts_of(store)}, not at one of {allowed}")
    judge_queues(store, world)
    judge_rows(store, world, rebuilt=rebuilt)
    judge_batches(store, world)
    judge_states(store)


def judge_queues(store: Store, world: World) -> None:
    """Consumers see exactly the expected messages, in order, byte for byte, without a gap."""
    there = {(queue.topic, queue.queue_id): queue for queue in store.queues.values()}
    for queue, messages in world.queues.items():
        if queue not in there:
            raise Wrong(f"queue {queue} is gone with {len(messages)} messages")
    for queue, opened in there.items():
        messages = world.queues.get(queue, [])
        number = store.core.names.queues_of[queue[0]][queue[1]]
        ends = (opened.end, store.core.queue_ends[number])
        if ends != (len(messages), len(messages)):
            raise Wrong(f"queue {queue} ends at {ends}, not at {len(messages)}")
        if messages[opened.start :] != (found := pulled(store, queue, opened.start)):
            raise Wrong(f"queue {queue}: {first_difference(messages[opened.start :], found)}")
        judge_lookups(store, messages[opened.start :][-_LOOKED_UP:])


def pulled(store: Store, queue: Queue, start: int) -> list[Seen]:
    """Return all messages that a consumer gets from this offset on."""
    reader = StoreReader(store)
    found: list[Seen] = []
    offset = start
    while True:
        answer = reader.pull(*queue, offset, count_max=50, bytes_max=100_000)
        if answer.status is not ReadStatus.FOUND:
            return found
        found.extend(seen(decode(message)) for message in answer.messages)
        offset = answer.next_offset


def first_difference(expected: Sequence[object], actual: Sequence[object]) -> str:
    """Describe where two lists first differ."""
    for at, (one, other) in enumerate(zip(expected, actual, strict=False)):
        if one != other:
            return f"at {at} expected {one!r}, got {other!r}"
    return f"expected {len(expected)}, got {len(actual)}"


def judge_lookups(store: Store, messages: Sequence[Seen]) -> None:
    """A visible message is found by its log offset and by its key."""
    reader = StoreReader(store)
    for message in messages:
        located = reader.at(message.log_offset)
        if located is None or not located.is_visible or seen(decode(located.message)) != message:
            raise Wrong(f"by log offset: expected {message}, got {located}")
        key = key_of(message)
        if not key:
            continue
        found = [seen(decode(one)) for one in reader.find(message.topic, key, limit=64)]
        if message not in found:
            raise Wrong(f"by key {key}: expected {message} among {found}")


def key_of(message: Seen) -> str:
    """The unique key from the message's properties."""
    for pair in message.properties.decode().split("\x02"):
        name, _, value = pair.partition("\x01")
        if name == "UNIQ_KEY":
            return value
    return ""


def judge_rows(store: Store, world: World, *, rebuilt: bool = False) -> None:
    """Every half message has its expected row, and there are no other rows."""
    table = store.table
    if table.end != len(world.rows):
        raise Wrong(f"the table ends at row {table.end}, not at {len(world.rows)}")
    for row in world.rows.values():
        half = table.get(row.number)
        if half is None:
            if not is_forgettable(world, row.number):
                raise Wrong(f"row {row} is gone")
            continue
        judge_row(store, world, row, half)
        if row.head is not None and not row.is_undecided:
            judge_decision(store, world, world.transactions[row.head], half, rebuilt=rebuilt)
    needed = sum(row.is_needed for row in world.rows.values())
    if table.needed != needed:
        raise Wrong(f"{table.needed} rows are needed, not {needed}")
    due = sorted(table.due(NEVER - 1, _EVERYTHING))
    expected = sorted(row.number for row in world.rows.values() if next_at_ms(world, row) < NEVER)
    if due != expected:
        raise Wrong(f"rows {due} are due one day, not {expected}")
    judge_ids(store, world)


def judge_ids(store: Store, world: World) -> None:
    """Undecided transactions are found by their ids, and the rows of their requests match."""
    table = store.table
    for transaction in world.transactions.values():
        if transaction.state in (State.PREPARED, State.PARKED):
            newest = world.newest(transaction.transaction_id)
            found = table.find(transaction.transaction_id)
            if newest == transaction and found != transaction.requests[-1][0]:
                raise Wrong(f"{transaction} is found at {found}")
            for number, (first, count) in enumerate(transaction.requests):
                judge_request(store, transaction.transaction_id, number, first, count)


def judge_row(store: Store, world: World, row: Row, half: Half) -> None:
    """Compare one row field by field."""
    transaction = world.transaction_of(row.number)
    is_head = transaction is not None and transaction.head == row.number
    expected = {
        "log_offset": row.log_offset,
        "stored_at_ms": row.stored_at_ms,
        "state": row.state,
        "checks_sent": transaction.checks_sent if transaction is not None and is_head else 0,
        "next_at_ms": next_at_ms(world, row),
    }
    actual = {name: getattr(half, name) for name in expected}
    if actual != expected:
        raise Wrong(f"row {row.number}: expected {expected}, got {actual}")
    queue = store.queues[half.queue]
    if (queue.topic, queue.queue_id) != (row.message.topic, row.message.queue_id):
        raise Wrong(f"row {row.number} is meant for {queue.topic}/{queue.queue_id}")
    if transaction is not None:
        origin = store.core.names.origins[half.origin]
        if origin.group != transaction.group:
            raise Wrong(f"row {row.number} belongs to {origin.group}, not {transaction.group}")
    if row.is_needed:
        held = seen(decode(store.reading.record_of(half)))
        if held != row.held():
            raise Wrong(f"row {row.number}: expected {row.held()}, got {held}")


def judge_decision(
    store: Store, world: World, transaction: Transaction, half: Half, *, rebuilt: bool
) -> None:
    """Compare who decided, and when."""
    by = store.table.decided_by(half)
    forgotten = is_old(world, transaction.decided_at_ms) or rebuilt
    if by != (transaction.by, transaction.decided_at_ms) and not (forgotten and by == ("", 0)):
        raise Wrong(f"{transaction} was decided by {by}")


def is_old(world: World, at_ms: int) -> bool:
    """Whether retention may have deleted what was written at this time."""
    return at_ms <= world.deleted_until_ms


def next_at_ms(world: World, row: Row) -> int:
    """When this row is due to be examined."""
    if row.is_waiting:
        return row.deliver_at_ms
    transaction = world.transaction_of(row.number)
    if transaction is None or transaction.head != row.number:
        return NEVER
    return transaction.next_at_ms


def judge_request(store: Store, transaction_id: str, number: int, first: int, count: int) -> None:
    """A request of an undecided transaction keeps its id, its number and its size."""
    half = store.table.get(first)
    assert half is not None
    found, stated = store.table.identity(half)
    if found != transaction_id or (stated not in (number, -1)):
        raise Wrong(
            f"row {first} is request {stated} of {found!r}, not {number} of {transaction_id}"
        )
    if half.part != FIRST | count:
        raise Wrong(f"row {first} begins {half.part & ~FIRST} rows, not {count}")


def judge_batches(store: Store, world: World) -> None:
    """A decided batch is "done" for its own query and "taken" for all others."""
    for (app, query, batch), at_ms in world.batches.items():
        if isinstance(batch, str) and is_old(world, at_ms):
            continue
        verdicts = (
            store.core.batches.judge(app, query, batch),
            store.core.batches.judge(app, "somebody-else", batch),
        )
        if verdicts != ("done", "taken"):
            raise Wrong(f"batch {app}/{query}/{batch} is {verdicts}")


def picture(store: Store) -> dict[str, object]:
    """Everything readable in the store, by name, as comparable values."""
    table, core = store.table, store.core
    found: dict[str, object] = {
        f"row {half.half_offset}": (
            without_op(half),
            store.reading.record_of(half) if needs_bytes(half) else b"",
        )
        for half in map(table.get, range(table.end))
        if half is not None
    }
    for queue in store.queues.values():
        place = (queue.topic, queue.queue_id)
        found[f"queue {place}"] = (queue.start, queue.end, pulled(store, place, queue.start))
    for name in ("parts", "heads", "delays", "resumed_at_ms"):
        # Builtins, not text, because the order in which small facts are kept does not matter.
        found[name] = msgspec.to_builtins(getattr(core, name))
    found["batches"] = msgspec.to_builtins(core.batches.apps)
    found["log"] = (store.last_at_ms, store.log.end, store.log_start)
    return found


def must_look_alike(one: dict[str, object], other: dict[str, object]) -> None:
    """Raise ``Wrong`` at the first difference between two pictures."""
    for name in one.keys() | other.keys():
        if one.get(name) != other.get(name):
            raise Wrong(f"{name} was {one.get(name)} and is {other.get(name)}")


def without_op(half: Half) -> tuple[object, ...]:
    """All fields but the op offset, which is in memory or in a file; ``decided_by`` reads both."""
    return tuple(getattr(half, name) for name in Half.__struct_fields__ if name != "op_offset")


def needs_bytes(half: Half) -> bool:
    return half.state in (State.PREPARED, State.PARKED) or half.next_at_ms != NEVER
