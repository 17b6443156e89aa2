"""A dead letter is sent again exactly once, also by concurrent and interrupted commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from escrowmq.client.consumer import redriving
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.native.headers import HoldManyHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.store.config import StoreConfig
from escrowmq.testing import InProcessBroker
from tests.unit.client.dead_letters import GROUP, bodies, give_up

TO_TOPIC = redriving.RedriveTarget.TOPIC


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(queue_count=1) as running:
        yield running


@pytest.fixture
def calls(broker: InProcessBroker) -> Iterator[NativeCalls]:
    with NativeCalls(broker.broker_address) as calls:
        yield calls


def test_a_letter_is_sent_once_also_when_the_broker_no_longer_has_that_in_memory() -> None:
    small = StoreConfig(chunk_rows=8, id_window_ms=0, segment_bytes_max=4_096)
    with InProcessBroker(queue_count=1, store=small) as broker:
        with NativeCalls(broker.broker_address) as calls:
            give_up(broker, calls, "a")
            found = redriving.letters(calls, GROUP)
            (sent,) = redriving.redrive(calls, found, GROUP, redriving.RedriveTarget.GROUP, "ada")
            assert sent.outcome == "sent"
            give_up(broker, calls, *"bcdefghijklmnopqrstuvwxyz")
            list(redriving.redrive(calls, redriving.letters(calls, GROUP), GROUP, TO_TOPIC, "ada"))
        broker.restart()
        broker.advance(seconds=10_000)
        with NativeCalls(broker.broker_address) as calls:
            found = redriving.letters(calls, GROUP)
            again = list(
                redriving.redrive(calls, found, GROUP, redriving.RedriveTarget.GROUP, "ada")
            )
        assert {one.outcome for one in again} == {"sent before"}
        assert bodies(broker, f"%RETRY%{GROUP}") == [b"a"]


def test_two_commands_at_once_send_each_letter_once(
    broker: InProcessBroker, calls: NativeCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up(broker, calls, "a", "b")
    # Simulate that both commands checked before either one sent.
    monkeypatch.setattr(redriving, "was_sent", lambda *_: False)
    for expected in ("sent", "sent before"):
        found = redriving.letters(calls, GROUP)
        sent = redriving.redrive(calls, found, GROUP, redriving.RedriveTarget.GROUP, "ada")
        assert [one.outcome for one in sent] == [expected] * 2
    assert bodies(broker, f"%RETRY%{GROUP}") == [b"a", b"b"]


def test_the_next_command_ends_the_work_of_one_that_died(
    broker: InProcessBroker, calls: NativeCalls
) -> None:
    give_up(broker, calls, "a", "b", "c")
    first = next(redriving.letters(calls, GROUP))
    row = redriving._row(first, f"%RETRY%{GROUP}", redriving.RedriveTarget.GROUP)
    header = HoldManyHeader(producer_group=redriving.PRODUCER_GROUP)
    calls.call(NativeCode.HOLD_MANY, header, [row])
    assert bodies(broker, f"%RETRY%{GROUP}") == []
    found = redriving.letters(calls, GROUP)
    sent = redriving.redrive(calls, found, GROUP, redriving.RedriveTarget.GROUP, "ada")
    assert [one.outcome for one in sent] == ["sent"] * 3
    assert sorted(bodies(broker, f"%RETRY%{GROUP}")) == [b"a", b"b", b"c"]


def test_large_letters_go_in_several_requests(
    broker: InProcessBroker, calls: NativeCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redriving, "BYTES_MAX", 1)
    give_up(broker, calls, "a", "b")
    sent = redriving.redrive(calls, redriving.letters(calls, GROUP), GROUP, TO_TOPIC, "ada")
    assert [one.outcome for one in sent] == ["sent", "sent"]
