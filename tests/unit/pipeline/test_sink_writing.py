"""An attempt of the sink on a real broker, without Spark: requests, retries, decisions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from escrowmq.model.errors import EscrowError, OutcomeUnknown, RequestRefused, Unavailable
from escrowmq.model.sink_attempt import PLAIN_QUERY, SinkAttempt, SinkRun
from escrowmq.pipeline.sink import writing as sink_writing
from escrowmq.pipeline.sink.calls import SinkCalls
from escrowmq.pipeline.sink.writing import REQUEST_ROWS_MAX, AttemptWriting
from escrowmq.pipeline.sink.written import SinkBatch, Written
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from escrowmq.transaction.policy import CheckPolicy
from tests.unit.logged import events
from tests.unit.pipeline.losing import LosingProxy

TOPIC = "orders"
RUN = SinkRun(app_id="app", query_id=PLAIN_QUERY, run="0a0b0c0d", opened_at=1)
TIMEOUT_MS = 5_000


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


def new_attempt() -> SinkAttempt:
    return SinkAttempt(run=RUN, batch="b", partition=0, attempt=uuid.uuid4().hex)


def rows(*bodies: str) -> pa.RecordBatch:
    return pa.record_batch({"body": list(bodies)})


def write(address: str, *batches: pa.RecordBatch, rows_max: int = 2) -> Written:
    with SinkCalls(address, TIMEOUT_MS) as calls:
        return AttemptWriting(calls, new_attempt(), TOPIC, rows_max).write(iter(batches))


def decide(address: str, *written: Written, batch: str = "b") -> str:
    with SinkCalls(address, TIMEOUT_MS) as calls:
        return calls.decide(SinkBatch(RUN, batch), written)


def bodies(broker: InProcessBroker) -> list[str]:
    return sorted(message.body.decode() for message in broker.messages(TOPIC))


def test_rows_are_hidden_until_the_batch_is_decided(broker: InProcessBroker) -> None:
    written = write(broker.broker_address, rows("a", "b", "c"), rows("d"))
    assert (written.last_number, written.rows) == (2, 4)
    assert bodies(broker) == []

    assert decide(broker.broker_address, written) == "decided"
    assert bodies(broker) == ["a", "b", "c", "d"]
    assert broker.undecided() == []


def test_all_of_a_batch_can_be_seen_however_many_requests_it_took(
    broker: InProcessBroker,
) -> None:
    written = write(broker.broker_address, rows(*"abcdefghijklmnopqrstuvwxyz"), rows_max=1)
    decide(broker.broker_address, written)
    assert bodies(broker) == list("abcdefghijklmnopqrstuvwxyz")


def test_a_new_topic_is_asked_for_while_rows_are_on_their_way(broker: InProcessBroker) -> None:
    """Both requests share one connection, and each must get its own answer."""
    names = [f"topic-{number}" for number in range(100)]
    batches = (pa.record_batch({"body": ["a"], "topic": [name]}) for name in names)
    with SinkCalls(broker.broker_address, TIMEOUT_MS) as calls:
        written = AttemptWriting(calls, new_attempt(), "", REQUEST_ROWS_MAX).write(batches)
    assert (written.rows, written.last_number) == (100, 99)
    assert decide(broker.broker_address, written) == "decided"
    assert all(len(broker.messages(name)) == 1 for name in names)


def test_an_attempt_can_be_told_from_its_names_and_waits_a_day(broker: InProcessBroker) -> None:
    written = write(broker.broker_address, rows("a"))
    (undecided,) = broker.undecided()
    assert undecided.group == "%SINK%app"
    assert undecided.transaction_id == written.attempt.transaction_id
    assert undecided.wait_ms == 24 * 3_600_000


def test_an_attempt_without_rows_holds_nothing_and_its_batch_is_decided(
    broker: InProcessBroker,
) -> None:
    written = write(broker.broker_address)
    assert written.rows == 0
    assert decide(broker.broker_address, written) == "decided"
    assert decide(broker.broker_address, written) == "already_done"


def test_a_batch_that_is_done_rolls_back_the_attempts_of_its_second_try(
    broker: InProcessBroker,
) -> None:
    assert decide(broker.broker_address, write(broker.broker_address, rows("a"))) == "decided"
    again = write(broker.broker_address, rows("a"))
    assert decide(broker.broker_address, again) == "already_done"
    assert bodies(broker) == ["a"]
    assert broker.undecided() == []


def test_every_answer_that_gets_lost_is_asked_for_again(broker: InProcessBroker) -> None:
    # The proxy loses every second answer, so each request is sent twice.
    with LosingProxy(broker.broker_address, lambda _, number: number % 2 == 0) as way:
        written = write(way.address, rows("a", "b", "c"), rows("d"))
        assert decide(way.address, written) == "already_done"
        assert way.brought[NativeCode.HOLD_HALVES] == 6
        assert way.brought[NativeCode.DECIDE_BATCH] == 2
    assert (written.last_number, written.rows) == (2, 4)
    assert bodies(broker) == ["a", "b", "c", "d"]
    assert len(broker.messages(TOPIC)) == 4


def test_a_broker_that_never_answers_is_given_up(broker: InProcessBroker) -> None:
    with (
        LosingProxy(broker.broker_address, lambda code, _: code is NativeCode.HOLD_HALVES) as way,
        SinkCalls(way.address, timeout_ms=300) as calls,
        pytest.raises(OutcomeUnknown, match="answer_lost"),
    ):
        AttemptWriting(calls, new_attempt(), TOPIC, REQUEST_ROWS_MAX).write(iter([rows("a")]))


def test_a_broker_that_is_away_is_waited_for_and_then_given_up(broker: InProcessBroker) -> None:
    address = broker.broker_address
    broker.stop()
    with (
        SinkCalls(address, timeout_ms=100) as calls,
        pytest.raises(Unavailable, match="broker_unreachable"),
    ):
        AttemptWriting(calls, new_attempt(), TOPIC, REQUEST_ROWS_MAX).write(iter([rows("a")]))


def test_a_restart_of_the_broker_between_two_requests_is_not_noticed(
    broker: InProcessBroker,
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield rows("a", "b")
        yield rows("c", "d")
        broker.restart()
        yield rows("e")

    with SinkCalls(broker.broker_address, TIMEOUT_MS) as calls:
        written = AttemptWriting(calls, new_attempt(), TOPIC, 2).write(batches())
    assert decide(broker.broker_address, written) == "decided"
    assert bodies(broker) == ["a", "b", "c", "d", "e"]


def test_an_attempt_whose_rows_cannot_be_made_is_rolled_back_at_once(
    broker: InProcessBroker,
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield rows("a", "b")
        yield rows("c")
        raise ValueError("no more rows")

    with (
        SinkCalls(broker.broker_address, TIMEOUT_MS) as calls,
        pytest.raises(ValueError, match="no more rows"),
    ):
        AttemptWriting(calls, new_attempt(), TOPIC, 2).write(batches())
    assert broker.undecided() == []
    assert bodies(broker) == []


def test_a_row_that_is_refused_names_itself_and_rolls_the_attempt_back(
    broker: InProcessBroker,
) -> None:
    wrong = pa.record_batch({"body": pa.array([b"c", None])})
    with pytest.raises(RequestRefused, match=r"body_illegal.*column='body', row=3"):
        write(broker.broker_address, rows("a", "b"), wrong)
    assert broker.undecided() == []


def test_a_request_that_the_broker_finds_too_large_is_split() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz" * 2
    policy = CheckPolicy(transaction_bytes_max=4_096)
    with InProcessBroker(policy=policy) as broker:
        written = write(broker.broker_address, rows(*letters), rows_max=100)
        assert written.last_number > 1
        assert decide(broker.broker_address, written) == "decided"
        assert bodies(broker) == sorted(letters)

        with pytest.raises(RequestRefused, match="request_too_large"):
            write(broker.broker_address, rows("x" * 5_000))


def test_requests_stay_below_the_limit_however_long_the_messages_are(
    broker: InProcessBroker,
) -> None:
    large = "x" * (3 * 1024 * 1024)
    written = write(broker.broker_address, rows(large, large, "a", large, "b"), rows_max=100)
    assert written.last_number == 1
    assert decide(broker.broker_address, written) == "decided"
    assert len(bodies(broker)) == 5
    assert sink_writing.REQUEST_BYTES_MAX < 16 * 1024 * 1024


# Rolling back.


def roll_back(address: str, *written: Written) -> None:
    with SinkCalls(address, TIMEOUT_MS) as calls:
        calls.roll_back(written)


def test_an_aborted_attempt_never_becomes_visible(broker: InProcessBroker) -> None:
    first, second = (write(broker.broker_address, rows(body)) for body in "ab")
    roll_back(broker.broker_address, first, second)
    assert broker.undecided() == []
    with pytest.raises(RequestRefused, match="attempt_not_prepared"):
        decide(broker.broker_address, first)
    assert bodies(broker) == []


def test_an_abort_leaves_alone_what_was_committed_and_raises_no_alert(
    broker: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (write(broker.broker_address, rows(body)) for body in "ab")
    other = write(broker.broker_address, rows("c"))
    decide(broker.broker_address, first, second)
    roll_back(broker.broker_address, first, second)
    assert bodies(broker) == ["a", "b"]
    assert [half.half_offset for half in broker.undecided()] == [other.head]
    assert "contradiction" not in events(caplog)


def test_a_decision_must_name_all_that_an_attempt_holds(broker: InProcessBroker) -> None:
    written = write(broker.broker_address, rows("a", "b", "c"))
    fewer = Written(written.attempt, written.head, written.last_number, 2)
    with pytest.raises(EscrowError, match="attempt_differs"):
        decide(broker.broker_address, fewer)
    assert bodies(broker) == []


def test_more_attempts_than_a_decision_can_name_are_refused(broker: InProcessBroker) -> None:
    written = [Written(new_attempt(), 0, 0, 1)] * 10_001
    with pytest.raises(RequestRefused, match=r"too_many_partitions.*coalesce.*10000"):
        decide(broker.broker_address, *written)
