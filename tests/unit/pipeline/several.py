"""Helpers for one write to several brokers, without Spark."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.sink_attempt import PLAIN_QUERY, SinkAttempt, SinkRun, is_part
from escrowmq.pipeline.settle.parts import settle_parts
from escrowmq.pipeline.sink.brokers import SinkBrokers, find_brokers
from escrowmq.pipeline.sink.calls import SinkCalls
from escrowmq.pipeline.sink.deciding import decide, give_up
from escrowmq.pipeline.sink.writing import AttemptWriting
from escrowmq.pipeline.sink.written import SinkBatch, Written
from escrowmq.protocol.native.headers import ListTransactionsHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker

TOPIC = "orders"
TIMEOUT_MS = 5_000
DIGITS = [str(number) for number in range(10)]
Brokers = Sequence[InProcessBroker]
RUN = SinkRun(app_id="app", query_id=PLAIN_QUERY, run="0a0b0c0d", opened_at=1)


@contextmanager
def brokers(*names: str) -> Iterator[list[InProcessBroker]]:
    with ExitStack() as started:
        yield [started.enter_context(InProcessBroker(name=name)) for name in names]


def several(
    served: Sequence[InProcessBroker | str], *, app_id: str | None = "app", topic: str = TOPIC
) -> SinkBrokers:
    addresses = [one if isinstance(one, str) else one.broker_address for one in served]
    return find_brokers(addresses, app_id, topic, TIMEOUT_MS)


def new_attempt(partition: int = 0, run: SinkRun = RUN, batch: str = "b") -> SinkAttempt:
    return SinkAttempt(run=run, batch=batch, partition=partition, attempt=uuid.uuid4().hex)


def rows(*bodies: str) -> pa.RecordBatch:
    return pa.record_batch({"body": list(bodies)})


def keyed(*keys: str) -> pa.RecordBatch:
    """Return rows whose bodies equal their keys."""
    return pa.record_batch({"body": list(keys), "key": list(keys)})


def write(
    to: SinkBrokers, attempt: SinkAttempt, batches: Iterator[pa.RecordBatch], rows_max: int = 4
) -> Written:
    with ExitStack() as opened:
        home, *others = (
            (broker, opened.enter_context(SinkCalls(broker.address, TIMEOUT_MS)))
            for broker in to.all
        )
        writing = AttemptWriting(
            home[1], attempt, TOPIC, rows_max, home=home[0].name, others=others
        )
        return writing.write(batches)


def commit(to: SinkBrokers, *written: Written, batch: str = "b") -> str:
    with SinkCalls(to.home.address, TIMEOUT_MS) as home:
        return decide(home, SinkBatch(RUN, batch), written, TIMEOUT_MS, to)


def abort(to: SinkBrokers, *written: Written) -> None:
    with SinkCalls(to.home.address, TIMEOUT_MS) as home:
        give_up(home, written)


def bodies(broker: InProcessBroker, topic: str = TOPIC) -> list[str]:
    return sorted(message.body.decode() for message in broker.messages(topic))


def all_bodies(served: Brokers) -> list[str]:
    return sorted(body for broker in served for body in bodies(broker))


def undecided(served: Brokers) -> list[int]:
    return [len(broker.undecided()) for broker in served]


def spread(served: Brokers, partition: int = 0) -> Written:
    """Write an attempt that has half messages at each of three brokers."""
    written = write(several(served), new_attempt(partition), iter([keyed(*DIGITS)]))
    assert undecided(served) == [1, 1, 1]
    return written


def settle(served: Brokers, *, homes: dict[str, str] | None = None) -> Counter[str]:
    """Handle the parts as a round of settling does, and return counts by outcome."""
    if homes is None:
        homes = {name: one.broker_address for name, one in zip("abc", served, strict=True)}
    found: list[dict[str, Any]] = []
    for broker in served:
        with NativeCalls(broker.broker_address) as calls:
            listed = ListTransactionsHeader(with_ids=True, states="prepared")
            for row in calls.rows(NativeCode.LIST_TRANSACTIONS, listed):
                if is_part(row.producer_group):
                    fields = ("half_offset", "transaction_id", "producer_group", "checks_sent")
                    facts = {name: getattr(row, name) for name in (*fields, "age_ms")}
                    place = {"broker": broker.broker_address, "state_code": row.state}
                    found.append({**facts, **place})
    reports, away = settle_parts(pa.Table.from_pylist(found), homes, {})
    done = Counter({f"away {place}": 1 for place in away})
    for one in reports:
        if one["kind"] == "count":
            done[one["reason"] or one["what"]] += one["rows"]
    return done
