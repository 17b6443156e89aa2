"""Reads the events of transactions from the raw log, in a task.

Nearly all of a log is transactions of one message, in a fixed layout. The task decodes these, so
that the broker's other clients do not have to wait. The broker is asked for everything else, and
for stretches that cannot be decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.source.queues import patiently
from escrowmq.protocol.native.frames import ArrowAnswer
from escrowmq.protocol.native.headers import LogRangeHeader
from escrowmq.protocol.native.raw_log import NameRow, ReadLogHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.store.reading.log_sweep import Swept, lone_stretch
from escrowmq.transaction.memory.origins import EXPIRED
from escrowmq.transaction.states import State

#: One value for each event of a kind, or None if the kind has none.
Values: TypeAlias = Any

FRAME_BYTES_MAX = 4096
"""With a larger average frame, raw reads would transfer too much unwanted data."""


def event_pages(
    calls: NativeCalls, header: LogRangeHeader, patience_s: float
) -> Iterator[tuple[int, ArrowAnswer]]:
    """Yield the pages of a range in log order, each with the log offset of its request."""
    at, columns, is_raw = header.start, header.columns.split(","), True
    names = NameLookup(calls, patience_s)
    cursor = ""
    while at < header.end:
        if is_raw and "/" not in cursor:
            asked = ReadLogHeader(start=at, end=header.end)
            answer = patiently(partial(calls.call_blocks, NativeCode.READ_LOG, asked), patience_s)
            base = int(answer.columns["log_offset"][0])
            told = lone_stretch(bytes(answer.data), base, header.end, answer.header.seed)
            if told.end > base:
                yield at, ArrowAnswer(header=answer.header, batch=_batch(told, names, columns))
                is_raw = told.end - base <= told.frames * FRAME_BYTES_MAX
                at, cursor = told.end, ""
                continue
        page = msgspec.structs.replace(header, start=at, cursor=cursor)
        listed = patiently(partial(calls.call_arrow, NativeCode.LIST_EVENTS, page), patience_s)
        yield at, listed
        if listed.header.cursor is None:
            return
        cursor = listed.header.cursor
        at = int(cursor.partition("/")[0])


class NameLookup:
    """The names of the numbers in records. An unknown number triggers a request."""

    def __init__(self, calls: NativeCalls, patience_s: float) -> None:
        self._calls = calls
        self._patience_s = patience_s
        self._known: dict[tuple[str, int], NameRow] = {}

    def of(self, kind: str, numbers: np.ndarray[Any, Any]) -> list[NameRow]:
        """The names of these numbers."""
        wanted = [(kind, number) for number in numbers.tolist()]
        if any(key not in self._known for key in wanted):
            ask = self._calls.rows
            rows = patiently(lambda: list(ask(NativeCode.LIST_NAMES)), self._patience_s)
            self._known = {(row.kind, row.number): row for row in rows}
            for key in wanted:
                self._known.setdefault(key, _gone(*key))
        return [self._known[key] for key in wanted]


def _gone(kind: str, number: int) -> NameRow:
    """A placeholder for a forgotten name: of a deleted queue or an expired origin."""
    is_queue = kind == "queue"
    return NameRow(
        kind=kind,
        number=number,
        name="" if is_queue else EXPIRED,
        queue_id=None,
        ledger=None if is_queue else "",
    )


def _batch(told: Swept, names: NameLookup, columns: list[str]) -> pa.RecordBatch:
    """Make these columns of the held, decided and visible events, in log order."""
    (halves,), (decisions,) = told.halves, told.decisions
    is_shown = decisions.records["queue"] >= 0
    shown = decisions.records[is_shown]
    counts = len(halves.records), len(decisions.records), len(shown)
    offsets = np.concatenate((halves.offsets, decisions.offsets, decisions.offsets[is_shown]))
    # Stable, so that a message is visible after its decision.
    order = np.argsort(offsets, kind="stable")
    made = _Columns(counts, order)
    rows = np.concatenate((halves.records["row"], decisions.records["row"], shown["row"]))
    times = np.concatenate((halves.at_ms, decisions.at_ms, decisions.at_ms[is_shown]))
    is_committed = decisions.records["state"] == int(State.COMMITTED)
    origin = cache(lambda: _origins(names, halves.records["origin"]))
    queue = cache(lambda: _queues(names, shown["queue"]))
    found = {
        "log_offset": lambda: made.whole(offsets),
        "at_ms": lambda: made.whole(times),
        "event": lambda: made.of(
            pa.string(),
            held=pa.repeat("held", counts[0]),
            decided=np.where(is_committed, "committed", "rolled_back"),
            visible=pa.repeat("visible", counts[2]),
        ),
        "head": lambda: made.whole(rows),
        "first": lambda: made.whole(rows),
        "message_count": lambda: made.whole(np.ones(sum(counts), dtype=np.int64)),
        "transaction_id": lambda: made.of(pa.string(), held=halves.texts),
        "producer_group": lambda: made.of(pa.string(), held=origin()[0]),
        "ledger": lambda: made.of(pa.string(), held=origin()[1]),
        "number": lambda: made.of(pa.int64(), held=halves.records["number"]),
        "checks_sent": lambda: made.of(pa.int32()),
        "by": lambda: made.of(pa.string(), decided=decisions.texts),
        "detail": lambda: made.of(pa.string()),
        "topic": lambda: made.of(pa.string(), visible=queue()[0]),
        "queue_id": lambda: made.of(pa.int32(), visible=queue()[1]),
        "queue_offset": lambda: made.of(pa.int64(), visible=shown["queue_offset"]),
        "app_id": lambda: made.of(pa.string()),
        "batch_id": lambda: made.of(pa.string()),
    }
    return pa.record_batch({name: found[name]() for name in columns})


def _origins(names: NameLookup, numbers: np.ndarray[Any, Any]) -> tuple[pa.Array, pa.Array]:
    """The producer groups and ledgers."""
    seen, places = np.unique(numbers, return_inverse=True)
    rows = names.of("origin", seen)
    groups = pa.array([row.name for row in rows], pa.string())
    ledgers = pa.array([row.ledger for row in rows], pa.string())
    return groups.take(pa.array(places)), ledgers.take(pa.array(places))


def _queues(names: NameLookup, numbers: np.ndarray[Any, Any]) -> tuple[pa.Array, pa.Array]:
    """The topics and queue ids."""
    seen, places = np.unique(numbers, return_inverse=True)
    rows = names.of("queue", seen)
    topics = pa.array([row.name or None for row in rows], pa.string())
    queue_ids = pa.array([row.queue_id for row in rows], pa.int32())
    return topics.take(pa.array(places)), queue_ids.take(pa.array(places))


class _Columns:
    """Builds columns for which each kind of event has values or not."""

    def __init__(self, counts: tuple[int, int, int], order: np.ndarray[Any, Any]) -> None:
        self._counts = counts
        self._order = order

    def whole(self, numbers: np.ndarray[Any, Any]) -> pa.Array:
        """A column of numbers that every event has."""
        return pa.array(numbers[self._order].astype(np.int64))

    def of(
        self,
        type_: pa.DataType,
        *,
        held: Values = None,
        decided: Values = None,
        visible: Values = None,
    ) -> pa.Array:
        """A column that only some kinds of events have."""
        parts = [
            pa.nulls(count, type_) if values is None else pa.array(values, type_)
            for count, values in zip(self._counts, (held, decided, visible), strict=True)
        ]
        return pa.concat_arrays(parts).take(pa.array(self._order))
