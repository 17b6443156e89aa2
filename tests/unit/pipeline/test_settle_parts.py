"""Settle ends each part of a sink's attempt as the attempt ended at its home."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.sink_attempt import HeldAs
from escrowmq.pipeline.sink.calls import SinkCalls, decision
from escrowmq.pipeline.sink.deciding import check
from escrowmq.pipeline.sink.writing import opening
from escrowmq.pipeline.sink.written import SinkBatch
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import SoughtAttemptRow
from escrowmq.store.config import StoreConfig
from escrowmq.testing import InProcessBroker
from tests.unit.pipeline.several import (
    DIGITS,
    TIMEOUT_MS,
    Brokers,
    all_bodies,
    bodies,
    brokers,
    new_attempt,
    rows,
    settle,
    several,
    spread,
    undecided,
    write,
)


@pytest.fixture
def served() -> Iterator[Brokers]:
    with brokers("a", "b", "c") as started:
        yield started


@pytest.mark.parametrize("resolution", ["committed", "rolled_back"])
def test_parts_become_what_the_attempt_became_at_home(served: Brokers, resolution: str) -> None:
    written = spread(served)
    with SinkCalls(served[0].broker_address, TIMEOUT_MS) as home:
        if resolution == "committed":
            home.decide(SinkBatch(written.attempt.run, "b"), [written])
        else:
            home.roll_back([written])
    assert settle(served) == {resolution: 2}
    assert all_bodies(served) == (DIGITS if resolution == "committed" else [])
    assert undecided(served) == [0, 0, 0]


def test_parts_wait_for_their_home_however_old_they_are(served: Brokers) -> None:
    spread(served)
    for broker in served:
        broker.advance(seconds=10 * 24 * 3_600)
    assert settle(served) == {}
    assert undecided(served) == [1, 1, 1]


def test_an_attempt_that_retention_carried_forward_is_found_and_decided_everywhere() -> None:
    """Retention deleted the start of every broker's log. The attempt keeps its offset and ids."""
    store = StoreConfig(segment_bytes_max=4_096)
    with ExitStack() as started:
        served = [started.enter_context(InProcessBroker(name=name, store=store)) for name in "abc"]
        written = spread(served)
        for broker in served:
            alone = several([broker], app_id=None)
            for _ in range(2):
                broker.advance(seconds=100 * 3_600)
                write(alone, new_attempt(batch="other"), iter([rows("x" * 4_096)]))
            broker.restart()
            with NativeCalls(broker.broker_address) as calls:
                assert calls.call(NativeCode.STATUS).header.log_start > 0
        with SinkCalls(served[0].broker_address, TIMEOUT_MS) as home:
            assert check({part.broker: [part] for part in written.elsewhere}, TIMEOUT_MS) is None
            home.decide(SinkBatch(written.attempt.run, "b"), [written])
        assert settle(served) == {"committed": 2}
        assert all_bodies(served) == DIGITS


def test_parts_wait_for_a_home_that_is_away(served: Brokers) -> None:
    spread(served)
    a, b, c = served
    address = a.broker_address
    a.stop()
    assert settle([b, c], homes={"a": address}) == {"home_away": 2, f"away {address}": 1}
    assert settle([b, c], homes={}) == {"home_away": 2, "away a": 1}
    assert undecided([b, c]) == [1, 1]


def test_a_part_that_its_home_does_not_know_is_parked_after_a_day_and_never_delivered(
    served: Brokers,
) -> None:
    spread(served)
    _, b, c = served
    # Another broker with the home's name, which never had the attempt.
    with InProcessBroker(name="a") as stranger:
        homes = {"a": stranger.broker_address}
        assert settle([b, c], homes=homes) == {"home_does_not_know": 2}
        b.advance(seconds=24 * 3_600)
        assert settle([b, c], homes=homes) == {"parked": 1, "home_does_not_know": 1}
    assert bodies(b) == []
    assert undecided([b, c]) == [0, 1]


def test_a_part_whose_names_tell_no_home_is_kept_for_a_person(served: Brokers) -> None:
    b = served[1]
    with SinkCalls(b.broker_address, TIMEOUT_MS) as calls:
        calls.hold(HeldAs("%SINK%app@a", "somebody's own id"), 0, opening())
    assert settle(served) == {"home_does_not_know": 1}
    b.advance(seconds=24 * 3_600)
    assert settle(served) == {"parked": 1}


def test_home_tells_what_became_of_an_attempt_as_long_as_its_log_has_it() -> None:
    """The answer stays the same after 2,000 more rows and after a restart."""
    store = StoreConfig(segment_bytes_max=64 * 1024, chunk_rows=64)
    with (
        InProcessBroker(store=store) as broker,
        SinkCalls(broker.broker_address, TIMEOUT_MS) as calls,
    ):
        to = several([broker])
        old = write(to, new_attempt(), iter([rows("x")]))
        group = old.attempt.run.producer_group
        sought = [SoughtAttemptRow(old.head, old.attempt.transaction_id)]
        calls.decide_each([decision(old.head, "commit", group)], "test")
        for _ in range(20):
            more = write(to, new_attempt(), iter([rows(*"abcdefghij" * 10)]), rows_max=50)
            calls.roll_back([more])
        assert [row.state for row in calls.find(group, sought)] == ["committed"]
        broker.restart()
        assert [row.state for row in calls.find(group, sought)] == ["committed"]
        for _ in range(2):
            broker.advance(seconds=100 * 3_600)
            write(to, new_attempt(), iter([rows("x" * 70_000)]))
        broker.advance(seconds=60)
        assert [row.state for row in calls.find(group, sought)] == [None]
