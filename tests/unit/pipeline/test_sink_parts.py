"""One write to several brokers, without Spark: attempts, the decision, and its way to parts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.model.sink_attempt import OPENING_TOPIC, SinkAttempt, SinkRun, parse_part
from escrowmq.pipeline.sink import deciding as sink_deciding
from escrowmq.pipeline.sink.calls import SinkCalls
from escrowmq.pipeline.sink.writing import opening
from escrowmq.pipeline.sink.written import SinkBatch
from escrowmq.protocol.native.requests import NativeCode
from tests.unit.logged import events
from tests.unit.pipeline.losing import LosingProxy
from tests.unit.pipeline.several import (
    DIGITS,
    TIMEOUT_MS,
    Brokers,
    abort,
    all_bodies,
    bodies,
    brokers,
    commit,
    keyed,
    new_attempt,
    rows,
    settle,
    several,
    spread,
    undecided,
    write,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]


QUERY = "0b9a6a52-5f6f-4b0e-8f0c-2f0c5c0d9d11"
OTHER_QUERY = "0b9a6a52-5f6f-4b0e-8f0c-000000000000"


@pytest.fixture
def served() -> Iterator[Brokers]:
    with brokers("a", "b", "c") as started:
        yield started


# Writing.


def test_rows_of_one_task_are_hidden_everywhere_until_one_decision(served: Brokers) -> None:
    written = spread(served)
    assert all_bodies(served) == []
    assert commit(several(served), written) == "decided"
    assert all_bodies(served) == DIGITS
    assert all(bodies(broker) for broker in served)
    assert undecided(served) == [0, 0, 0]


def test_rows_without_keys_go_to_one_broker_and_home_opens_the_attempt(served: Brokers) -> None:
    written = write(several(served), new_attempt(partition=1), iter([rows(*DIGITS)]))
    assert undecided(served) == [1, 1, 0]
    assert (written.rows, written.last_number) == (1, 0)
    assert [(part.broker.name, part.rows) for part in written.elsewhere] == [("b", 10)]
    commit(several(served), written)
    assert [bodies(broker) for broker in served] == [[], DIGITS, []]
    assert [len(broker.messages(OPENING_TOPIC)) for broker in served] == [1, 0, 0]


def test_home_is_not_opened_for_nothing(served: Brokers) -> None:
    at_home = write(several(served), new_attempt(partition=0), iter([rows("x")]))
    assert (at_home.rows, at_home.elsewhere) == (1, ())
    nothing = write(several(served), new_attempt(partition=1), iter([]))
    assert (nothing.rows, nothing.elsewhere) == (0, ())
    assert undecided(served) == [1, 0, 0]


def test_a_part_tells_where_its_home_is(served: Brokers) -> None:
    written = spread(served)
    (half,) = served[1].undecided()
    assert half.group == "%SINK%app@a"
    home = parse_part(half.group, half.transaction_id)
    assert home is not None
    assert (home.broker, home.half_offset) == ("a", written.head)
    assert home.held_as == written.attempt.at_home


def test_home_holds_the_attempt_before_any_other_broker_hears_of_it(served: Brokers) -> None:
    """When the first request reaches another broker, the home already holds half messages."""
    a, b, _ = served
    seen: list[int] = []

    def loses(code: NativeCode, number: int) -> bool:
        if code is NativeCode.HOLD_HALVES and number == 0:
            seen.append(len(a.undecided()))
        return False

    with LosingProxy(b.broker_address, loses) as way:
        write(several([a, way.address]), new_attempt(partition=1), iter([rows("x")]))
    assert seen == [1]


def test_every_answer_of_every_broker_may_get_lost_once(served: Brokers) -> None:
    def loses(_: NativeCode, number: int) -> bool:
        return number % 2 == 0

    ways = [LosingProxy(broker.broker_address, loses) for broker in served]
    with ways[0], ways[1], ways[2]:
        to = several([way.address for way in ways])
        written = write(to, new_attempt(), iter([keyed(*DIGITS), keyed(*DIGITS)]))
        # The first answer was lost. The retry finds the decision, made for these attempts.
        assert commit(to, written) == "already_done"
    assert all_bodies(served) == sorted(DIGITS * 2)
    assert undecided(served) == [0, 0, 0]


def test_an_attempt_that_fails_takes_itself_back_everywhere(served: Brokers) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield keyed(*DIGITS)
        yield keyed(*DIGITS)
        raise ValueError("no more rows")

    with pytest.raises(ValueError, match="no more rows"):
        write(several(served), new_attempt(), batches())
    assert undecided(served) == [0, 0, 0]
    assert all_bodies(served) == []


# The decision.


def test_a_part_that_is_not_as_reported_refuses_the_whole_batch(served: Brokers) -> None:
    written = spread(served)
    part = written.elsewhere[1]
    with SinkCalls(part.broker.address, TIMEOUT_MS) as calls:
        calls.hold(part.held_as, part.last_number + 1, opening())
    with pytest.raises(RequestRefused, match=r"attempt_differs.*broker='c'"):
        commit(several(served), written)
    assert all_bodies(served) == []
    assert undecided(served) == [1, 1, 1]


def test_a_part_that_is_gone_refuses_the_whole_batch(served: Brokers) -> None:
    first, second = spread(served), write(several(served), new_attempt(1), iter([rows("x")]))
    abort(several(served), second)
    with pytest.raises(RequestRefused, match=r"attempt_not_prepared.*state='rolled_back'"):
        commit(several(served), first, second)
    assert all_bodies(served) == []


def test_a_batch_that_is_done_rolls_back_its_second_try_everywhere(served: Brokers) -> None:
    to = several(served)
    assert commit(to, spread(served)) == "decided"
    assert commit(to, spread(served)) == "already_done"
    assert all_bodies(served) == DIGITS
    assert undecided(served) == [0, 0, 0]


def test_a_batch_that_is_done_is_so_also_if_settle_was_faster(served: Brokers) -> None:
    """Settle rolls back the repeated attempt before the driver asks for its decision."""
    to = several(served)
    commit(to, spread(served))
    again = spread(served)
    with SinkCalls(to.home.address, TIMEOUT_MS) as home:
        home.roll_back([again])
    assert settle(served) == {"rolled_back": 2}
    assert commit(to, again) == "already_done"
    assert all_bodies(served) == DIGITS


def stream_run(query_id: str) -> SinkRun:
    return SinkRun(app_id="app", query_id=query_id, run="0a0b0c0d", opened_at=1)


def test_the_home_brokers_answer_about_a_batch_decides_nothing(served: Brokers) -> None:
    run, other = stream_run(QUERY), stream_run(OTHER_QUERY)
    with SinkCalls(served[0].broker_address, TIMEOUT_MS) as home:
        assert home.judge(SinkBatch(run, 0)) == "new"
        home.decide(SinkBatch(run, 7), [])
        home.decide(SinkBatch(run, "name"), [])
        assert [home.judge(SinkBatch(run, batch)) for batch in (6, 7, 8)] == ["done", "done", "new"]
        assert [home.judge(SinkBatch(other, batch)) for batch in (7, 8)] == ["taken", "new"]
        assert [home.judge(SinkBatch(run, batch)) for batch in ("name", "7")] == ["done", "new"]


def test_a_query_whose_checkpoint_was_deleted_hears_so_also_if_settle_was_faster(
    served: Brokers,
) -> None:
    run, to = stream_run(OTHER_QUERY), several(served)
    with SinkCalls(to.home.address, TIMEOUT_MS) as home:
        home.decide(SinkBatch(stream_run(QUERY), 7), [])
        attempt = SinkAttempt(run=run, batch=7, partition=0, attempt=uuid.uuid4().hex)
        written = write(to, attempt, iter([keyed(*DIGITS)]))
        home.roll_back([written])
        assert settle(served) == {"rolled_back": 2}
        with pytest.raises(RequestRefused, match="batch_decided_by_another_query"):
            sink_deciding.decide(home, SinkBatch(run, 7), [written], TIMEOUT_MS, to)
    assert all_bodies(served) == []


def test_an_abort_rolls_back_everywhere_and_leaves_what_was_committed(served: Brokers) -> None:
    to = several(served)
    first, second = spread(served), write(to, new_attempt(1), iter([rows("x")]))
    commit(to, first)
    abort(to, first, second)
    assert all_bodies(served) == DIGITS
    assert undecided(served) == [0, 0, 0]


def test_a_decision_is_a_success_though_another_broker_is_away_then(
    served: Brokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker stops before it hears of the decision, and settle forwards it later."""
    monkeypatch.setattr(sink_deciding, "FORWARD_MS", 100)
    written, c = spread(served), served[2]
    to = several(served)
    with SinkCalls(to.home.address, TIMEOUT_MS) as home:
        home.decide(SinkBatch(written.attempt.run, "b"), [written])
        c.stop()
        sink_deciding.forward(home, [written])
    assert "decision_not_forwarded" in events(caplog)
    c.start()
    assert undecided(served) == [0, 0, 1]
    assert settle(served) == {"committed": 1}
    assert all_bodies(served) == DIGITS


def test_a_decision_is_not_forwarded_if_the_home_broker_does_not_answer(
    served: Brokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sink_deciding, "FORWARD_MS", 100)
    written, a = spread(served), served[0]
    with SinkCalls(a.broker_address, TIMEOUT_MS) as home:
        a.stop()
        sink_deciding.forward(home, [written])
    assert "decision_not_forwarded" in events(caplog)
    a.start()
    assert undecided(served) == [1, 1, 1]
