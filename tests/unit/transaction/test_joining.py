"""Requests of one transaction join in order; a repeated request is held once."""

from __future__ import annotations

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import Decision, HoldReply, Prepare
from escrowmq.transaction.states import State


def prepare(
    engine: MemoryEngine,
    transaction_id: str,
    *messages: SentMessage,
    group: str = "pay",
    number: int | None = None,
    bulk: bool = False,
    user: str = "",
) -> Decision:
    return engine.submit(
        Prepare(
            group=group,
            transaction_id=transaction_id,
            messages=messages,
            number=number,
            bulk=bulk,
            user=user,
        )
    )


def held(decision: Decision) -> HoldReply:
    assert decision.refused is None
    assert isinstance(decision.reply, HoldReply)
    return decision.reply


def refusal(decision: Decision) -> RequestRefused:
    assert decision.records == ()
    assert decision.refused is not None
    return decision.refused


# Numbered requests.


def test_requests_of_one_transaction_join_in_order() -> None:
    engine = MemoryEngine()
    prepare(engine, "t", message(b"a"), number=0)
    prepare(engine, "other", message(b"x"), number=0)
    prepare(engine, "t", message(b"b"), message(b"c"), number=1)
    prepare(engine, "t", message(b"d"), number=2)
    assert engine.core.ranges_of(0) == [(0, 1), (2, 2), (4, 1)]
    assert engine.core.heads == {2: 0, 4: 0}
    assert engine.core.ranges_of(1) == [(1, 1)]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_repeated_request_is_answered_as_the_first_time(number: int) -> None:
    engine = MemoryEngine()
    bodies = [b"a", b"b", b"c"]
    first = [
        held(prepare(engine, "t", message(body), message(body), number=n))
        for n, body in enumerate(bodies)
    ][number]

    body = bodies[number]
    again = prepare(engine, "t", message(body), message(body), number=number)

    assert again.records == ()
    reply = held(again)
    assert reply.repeated
    assert (reply.half_offset, reply.count) == (first.half_offset, 2)
    assert reply.log_offsets == first.log_offsets
    assert engine.core.table.end == 6


@pytest.mark.parametrize(
    "other",
    [
        # More messages, fewer, another body, another topic, another queue.
        (message(b"a"), message(b"b"), message(b"c")),
        (message(b"a"),),
        (message(b"a"), message(b"B")),
        (message(b"a"), message(b"b", topic="stock")),
        (message(b"a"), message(b"b", queue_id=1)),
    ],
)
def test_a_number_used_again_for_other_messages_is_refused(other: tuple[SentMessage, ...]) -> None:
    """An answer that it is held would lose the new messages."""
    engine = MemoryEngine()
    prepare(engine, "t", message(b"a"), message(b"b"), number=0)
    refused = refusal(prepare(engine, "t", *other, number=0))
    assert refused.code == "number_reused"
    assert refused.fields == {"transaction_id": "t", "number": 0, "count": 2}


def test_a_gap_in_the_numbers_is_refused() -> None:
    engine = MemoryEngine()
    first = refusal(prepare(engine, "t", message(), number=1))
    assert (first.code, first.fields["number"]) == ("number_gap", 1)
    prepare(engine, "t", message(), number=0)
    later = refusal(prepare(engine, "t", message(), number=2))
    assert (later.code, later.fields["expected"]) == ("number_gap", 1)


def test_another_group_cannot_join_a_transaction() -> None:
    engine = MemoryEngine()
    prepare(engine, "t", message(), group="pay", number=0)
    for number in (0, 1):
        refused = refusal(prepare(engine, "t", message(), group="ship", number=number))
        assert (refused.code, refused.fields["producer_group"]) == ("producer_group_wrong", "ship")


def test_another_user_cannot_join_a_transaction() -> None:
    engine = MemoryEngine()
    prepare(engine, "t", message(), number=0, user="shop")
    refused = refusal(prepare(engine, "t", message(), number=1, user="eve"))
    assert (refused.code, refused.fields["user"]) == ("transaction_of_other_user", "eve")
    assert held(prepare(engine, "t", message(), number=1, user="shop")).half_offset == 1


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_decided_transaction_takes_no_more_messages_and_names_its_decider(number: int) -> None:
    engine = MemoryEngine()
    prepare(engine, "t", message(), number=0)
    prepare(engine, "t", message(), number=1)
    engine.rollback(0, by="producer-7")
    decided_at_ms = engine.clock.now_ms()
    engine.clock.advance(seconds=1)

    refused = refusal(prepare(engine, "t", message(), number=number))

    assert refused.code == "already_rolled_back"
    assert (refused.fields["by"], refused.fields["at_ms"]) == ("producer-7", decided_at_ms)


def test_a_parked_transaction_answers_repeats_but_takes_no_more() -> None:
    engine = MemoryEngine()
    prepare(engine, "t", message(), number=0)
    engine.park(0)
    assert held(prepare(engine, "t", message(), number=0)).repeated
    assert refusal(prepare(engine, "t", message(), number=1)).code == "already_parked"
    engine.resume(0)
    assert held(prepare(engine, "t", message(), number=1)).half_offset == 1


def test_numbered_requests_need_a_transaction_id() -> None:
    """Without an id, all of them would be one transaction."""
    engine = MemoryEngine()
    assert refusal(prepare(engine, "", message(), number=0)).code == "no_transaction_id"
    assert held(prepare(engine, "", message())).half_offset == 0
    assert held(prepare(engine, "", message())).half_offset == 1


def test_a_numbered_transaction_does_not_join_a_stock_clients_half_of_the_same_id() -> None:
    engine = MemoryEngine()
    prepare(engine, "t", message(b"stock"))
    assert refusal(prepare(engine, "t", message(), number=1)).code == "number_gap"
    reply = held(prepare(engine, "t", message(b"stock"), number=0))
    assert (reply.half_offset, reply.repeated) == (1, False)
    engine.commit(1)
    assert engine.state(0) is State.PREPARED


# A stock client sends again what was never acknowledged to it.


def test_a_half_sent_again_is_answered_with_the_first_ones_offsets() -> None:
    engine = MemoryEngine()
    first = held(prepare(engine, "k", message(b"a")))
    engine.clock.advance(seconds=30)

    again = prepare(engine, "k", message(b"a"))

    assert again.records == ()
    reply = held(again)
    assert (reply.half_offset, reply.log_offsets) == (first.half_offset, first.log_offsets)
    assert reply.repeated


def test_a_client_that_sends_again_may_have_chosen_another_queue() -> None:
    engine = MemoryEngine()
    prepare(engine, "k", message(b"a", queue_id=0))
    assert held(prepare(engine, "k", message(b"a", queue_id=3))).repeated


@pytest.mark.parametrize(
    ("again", "group"),
    [
        # Another body, topic, or group: another message.
        ((message(b"b"),), "pay"),
        ((message(b"a", topic="stock"),), "pay"),
        ((message(b"a"),), "ship"),
        # A stock client sends one half at a time.
        ((message(b"a"), message(b"a")), "pay"),
    ],
)
def test_a_reused_id_on_something_else_is_a_new_transaction(
    again: tuple[SentMessage, ...], group: str
) -> None:
    engine = MemoryEngine()
    prepare(engine, "k", message(b"a"))
    reply = held(prepare(engine, "k", *again, group=group))
    assert (reply.half_offset, reply.repeated) == (1, False)


def test_a_half_sent_again_too_late_is_a_new_transaction() -> None:
    engine = MemoryEngine()
    prepare(engine, "k", message(b"a"))
    engine.clock.advance(ms=30_001)
    assert held(prepare(engine, "k", message(b"a"))).half_offset == 1


@pytest.mark.parametrize("resolution", [Resolution.COMMIT, Resolution.ROLLBACK])
def test_a_half_sent_again_after_its_end_is_a_new_transaction(resolution: Resolution) -> None:
    engine = MemoryEngine()
    prepare(engine, "k", message(b"a"))
    engine.end(0, resolution)
    assert held(prepare(engine, "k", message(b"a"))).half_offset == 1


def test_parked_is_not_the_end_for_a_half_sent_again() -> None:
    engine = MemoryEngine()
    prepare(engine, "k", message(b"a"))
    engine.park(0)
    assert held(prepare(engine, "k", message(b"a"))).repeated


def test_the_newest_transaction_with_an_id_is_the_one_that_is_sent_again() -> None:
    engine = MemoryEngine()
    prepare(engine, "k", message(b"a"))
    prepare(engine, "k", message(b"b"))
    assert held(prepare(engine, "k", message(b"b"))).half_offset == 1
    assert held(prepare(engine, "k", message(b"a"))).half_offset == 2
