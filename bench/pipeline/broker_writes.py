"""The cost of the pipeline's writes for the broker: verdicts, held messages, decided batches.

    python -m bench.pipeline broker_writes [ROWS]

Runs a `serve` process and this one. The figures are the broker's own CPU time per row, and rows per
second as the client sees them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no type stubs

from bench.figures.common import report, scratch
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.sink.writing import REQUEST_ROWS_MAX
from escrowmq.protocol.native.headers import ByHeader, HoldHeader, HoldManyHeader
from escrowmq.protocol.native.requests import NATIVE_REQUESTS, NativeCode
from escrowmq.protocol.native.rows import AttemptRow, DecisionRow
from escrowmq.protocol.native.sink_headers import DecideBatchHeader
from tests.fuzz.served import Served, served

ROWS = 100_000
BODY_BYTES = 300
QUEUES = 8
GROUP = "%SINK%bench"


def main(arguments: list[str]) -> None:
    """Measure each kind of write."""
    rows = int(arguments[0]) if arguments else ROWS
    with scratch() as path, served(path) as broker, NativeCalls(broker.address) as calls:
        verdicts(broker, calls, rows)
        attempts(broker, calls, rows)


def verdicts(broker: Served, calls: NativeCalls, rows: int) -> None:
    """Commit half of `rows` transactions of one message, and roll back the others."""
    hold_many(calls, rows)
    at_once = NATIVE_REQUESTS[NativeCode.OBEY_VERDICTS].rows_max
    batches = [
        verdict_batch(np.arange(first, min(first + at_once, rows)))
        for first in range(0, rows, at_once)
    ]
    outcomes: list[Any] = []

    def obey() -> None:
        for batch in batches:
            answer = calls.call_arrow(NativeCode.OBEY_VERDICTS, ByHeader(by="bench"), batch)
            outcomes.append(answer.batch.column("outcome"))

    measure(broker, "verdict", rows, obey)
    counts = {
        one["values"]: one["counts"]
        for one in pa.chunked_array(outcomes).value_counts().to_pylist()
    }
    assert set(counts) == {"committed", "rolled_back"}, counts


def hold_many(calls: NativeCalls, rows: int) -> None:
    """Hold transactions of one message each."""
    header = HoldManyHeader(producer_group="bench", ledger="ledger", allowed_ms=1_000)
    at_once = NATIVE_REQUESTS[NativeCode.HOLD_MANY].rows_max
    for first in range(0, rows, at_once):
        numbers = range(first, min(first + at_once, rows))
        batch = sent_batch(numbers)
        ids = pa.array([f"transaction-{number}" for number in numbers])
        calls.call_arrow(NativeCode.HOLD_MANY, header, batch.append_column("transaction_id", ids))


def verdict_batch(half_offsets: np.ndarray[Any, Any]) -> pa.RecordBatch:
    """Verdicts in the form in which settling sends them."""
    count = len(half_offsets)
    names = pa.array(["commit", "rollback"])
    return pa.record_batch(
        {
            "half_offset": half_offsets,
            "verdict": names.take(pa.array(half_offsets % 2)),
            "state": np.zeros(count, dtype=np.int32),
            "checks_sent": np.zeros(count, dtype=np.int32),
            "reason": pa.nulls(count, pa.utf8()),
        }
    )


def sent_batch(numbers: range) -> pa.RecordBatch:
    """Messages in the form in which the sink sends them."""
    count = len(numbers)
    bodies = os.urandom(BODY_BYTES * count)
    offsets = np.arange(0, BODY_BYTES * count + 1, BODY_BYTES, dtype=np.int32)
    return pa.record_batch(
        {
            "topic": pa.array(["bench-topic"]).take(pa.array(np.zeros(count, dtype=np.int64))),
            "queue_id": np.arange(numbers.start, numbers.stop, dtype=np.int32) % QUEUES,
            "body": pa.Array.from_buffers(
                pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(bodies)]
            ),
            "properties": [
                f"UNIQ_KEY\x017F000001000018B4AAC2{number:012X}\x02KEYS\x01order-{number}\x02"
                for number in numbers
            ],
            "flag": np.zeros(count, dtype=np.int32),
            "sys_flag": np.zeros(count, dtype=np.int32),
            "born_at_ms": np.full(count, 1_700_000_000_000),
        }
    )


def attempts(broker: Served, calls: NativeCalls, rows: int) -> None:
    """Hold two attempts of `rows` rows each; commit the first and roll back the second."""
    batches = [
        sent_batch(range(first, min(first + REQUEST_ROWS_MAX, rows)))
        for first in range(0, rows, REQUEST_ROWS_MAX)
    ]
    half_offset = 0
    for attempt in ("a1", "a2"):

        def hold(attempt: str = attempt) -> None:
            nonlocal half_offset
            for number, batch in enumerate(batches):
                header = HoldHeader(
                    producer_group=GROUP, transaction_id=attempt, number=number, is_bulk=True
                )
                half_offset = calls.call_arrow(
                    NativeCode.HOLD_HALVES, header, batch
                ).header.half_offset

        measure(broker, f"hold_{attempt}", rows, hold)
    claim = AttemptRow(transaction_id="a1", last_number=len(batches) - 1, messages=rows)
    batch = DecideBatchHeader(app_id="bench", query_id="q", batch_number=0, by="bench")
    measure(
        broker, "decide_batch", rows, lambda: calls.call(NativeCode.DECIDE_BATCH, batch, [claim])
    )
    row = DecisionRow(
        half_offset=half_offset, resolution="rollback", producer_group=GROUP, log_offset=None
    )
    measure(broker, "abort", rows, lambda: calls.call(NativeCode.DECIDE_MANY, rows=[row]))


def measure(broker: Served, name: str, rows: int, work: Callable[[], object]) -> None:
    """Report the broker's CPU time per row and the rows per second."""
    before, started = broker.usage().cpu_ms, time.perf_counter()
    work()
    took = time.perf_counter() - started
    cpu_us = (broker.usage().cpu_ms - before) * 1_000 / rows
    report(f"{name}_cpu_us", cpu_us, "us", rows=rows, per_second=round(rows / took))
