"""What an opened store says of itself, as plain JSON: equal for every version that can read it."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from escrowmq.protocol.message.stored_message import decode
from escrowmq.transaction.states import State
from tests.unit.store.helpers import Driver, is_half_decided

KEYS = ("order-1", "shared", "unique-1")
BODY_CHARS_MAX = 60
TRANSACTIONS = ("committed", "rolled back", "undecided", "parked", "many", "late", "never seen")


def summary(driver: Driver) -> dict[str, Any]:
    """Everything that a caller could ask."""
    store, core = driver.store, driver.store.core
    return {
        "log_end": store.log.end,
        "log_start": store.log.start,
        "last_at_ms": store.last_at_ms,
        "rows_end": store.table.end,
        "needed": store.table.needed,
        "rows": {str(row): row_facts(driver, row) for row in driver.known_rows()},
        "queues": {
            f"{queue.topic}/{queue.queue_id}": {
                "start": queue.start,
                "end": queue.end,
                "messages": queue_facts(driver, queue.topic, queue.queue_id),
            }
            for queue in store.queues.values()
        },
        "keys": {key: found(driver, key) for key in KEYS},
        "transactions": {name: transaction(driver, name) for name in TRANSACTIONS},
        "parts": {str(head): [list(one) for one in p.ranges] for head, p in core.parts.items()},
        "delays": {str(row): delay for row, delay in core.delays.items()},
        "resumed": {str(row): at_ms for row, at_ms in core.resumed_at_ms.items()},
        "batches": {
            app: {"highest": batches.highest, "named": sorted(batches.named)}
            for app, batches in core.batches.apps.items()
        },
        "groups": [[one.group, one.ledger, one.allowed_ms] for one in core.names.origins],
    }


def row_facts(driver: Driver, row: int) -> dict[str, Any]:
    half = driver.half(row)
    is_decided = is_half_decided(half)
    return {
        "log_offset": half.log_offset,
        "size": half.size,
        "state": half.state.label,
        "stored_at_ms": half.stored_at_ms,
        "checks_sent": half.checks_sent,
        "next_at_ms": half.next_at_ms,
        "first": half.first,
        "decided_by": list(driver.store.table.decided_by(half)) if is_decided else None,
    }


def queue_facts(driver: Driver, topic: str, queue_id: int) -> list[dict[str, Any]]:
    return [
        {
            "queue_offset": one.queue_offset,
            "visible_at_ms": one.stored_at_ms,
            "log_offset": one.log_offset,
            "prepared_offset": one.prepared_offset,
            "sys_flag": one.sys_flag,
            "body": one.body.decode() if len(one.body) < BODY_CHARS_MAX else crc32(one.body),
            "properties": one.properties.decode(),
        }
        for one in driver.messages(topic, queue_id)
    ]


def found(driver: Driver, key: str) -> list[str]:
    return [decode(one).body.decode() for one in driver.reader.find("orders", key, limit=100)]


def transaction(driver: Driver, name: str) -> list[Any] | None:
    half = driver.reader.find_transaction(name)
    return None if half is None else [half.half_offset, State(half.state).label]
