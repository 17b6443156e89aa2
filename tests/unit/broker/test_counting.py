"""Durable records are counted, wherever their rows are; an error never stops the writer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.state import counting
from escrowmq.broker.state.counting import BrokerCounts, Histogram
from escrowmq.broker.write.inbox import QueuedCommand
from escrowmq.model.resolution import Resolution
from escrowmq.store.config import StoreConfig
from escrowmq.testing import Engine, message
from escrowmq.transaction.commands import Append, Command, Decision, End, Verdicts
from escrowmq.transaction.states import State
from tests.unit.logged import events

if TYPE_CHECKING:
    import pytest

CHUNK_ROWS = 64


def counted(engine: Engine, counts: BrokerCounts, command: Command) -> Decision:
    decision = engine.submit(command)
    assert decision.refused is None
    counts.durable([QueuedCommand(command, lambda _: None, 0)], [decision])
    return decision


def buckets(histogram: Histogram | None) -> dict[float, int]:
    """Return the counts of the non-empty buckets by bound."""
    assert histogram is not None
    bounds = [*histogram.bounds, float("inf")]
    return {bound: count for bound, count in zip(bounds, histogram.counts, strict=True) if count}


def test_the_age_of_a_transaction_that_outlived_its_chunk_is_known() -> None:
    engine = Engine(config=StoreConfig(chunk_rows=CHUNK_ROWS, id_window_ms=0))
    old = engine.prepare("old").half_offset
    for number in range(CHUNK_ROWS):
        engine.rollback(engine.prepare(f"t{number}").half_offset)
        engine.clock.advance(seconds=1)
    engine.checkpoint()
    assert old in engine.store.table.survivors.rows
    counts = BrokerCounts(engine.store)
    counted(engine, counts, End(half_offset=old, resolution=Resolution.COMMIT, by="p"))
    of_topic = counts.topics["orders"]
    assert (of_topic.committed, buckets(of_topic.finished)) == (1, {600: 1})


def test_verdicts_in_bulk_are_counted_by_queue_and_age() -> None:
    engine = Engine()
    old = [engine.prepare(f"old{number}").half_offset for number in range(3)]
    engine.clock.advance(seconds=90)
    new = [engine.prepare(f"new{number}", message(topic="b")).half_offset for number in range(2)]
    counts = BrokerCounts(engine.store)
    for rows, commits in (([*old[:2], new[0]], True), ([old[2], new[1]], False)):
        command = Verdicts(
            half_offsets=rows,
            commits=[commits] * len(rows),
            states=[State.PREPARED] * len(rows),
            checks_sent=[0] * len(rows),
        )
        counted(engine, counts, command)
    orders, other = counts.topics["orders"], counts.topics["b"]
    assert (orders.committed, orders.rolled_back, buckets(orders.finished)) == (
        2,
        1,
        {600: 2},
    )
    assert (other.committed, other.rolled_back, buckets(other.finished)) == (1, 1, {5: 1})
    assert counts.decisions["settle", "committed"] == 3
    assert counts.decisions["settle", "rolled_back"] == 2


def test_a_commit_that_waits_for_its_time_is_a_commit() -> None:
    engine = Engine()
    later = message(deliver_after_ms=60_000)
    held = engine.prepare("t", message(), later).half_offset
    counts = BrokerCounts(engine.store)
    counted(engine, counts, End(half_offset=held, resolution=Resolution.COMMIT, by="p"))
    assert counts.topics["orders"].committed == 2


def test_an_uncountable_event_stops_no_request_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine()
    counts = BrokerCounts(engine.store)
    command = Append(messages=(message(),))
    decision = engine.submit(command)
    for _ in range(3):
        counts.durable([], [decision])
    assert events(caplog) == ["counting_failed"]
    counted(engine, counts, command)
    assert sum(counts.topics["orders"].size("normal").counts) == 1


def test_groups_and_topics_beyond_the_limit_share_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "OUT_MAX", 2)
    counts = BrokerCounts(Engine().store)
    outs = [counts.given("g", topic) for topic in ("a", "b", "c", "d", "a")]
    assert outs[0] is outs[4]
    assert outs[2] is outs[3] is counts.out[counting.OTHERS, counting.OTHERS]
    assert len(counts.out) == 3
