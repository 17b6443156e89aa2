"""Half messages are held once each, within limits, however often a client sends them."""

from __future__ import annotations

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.model.limits_config import LimitsConfig
from escrowmq.model.message import SentMessage
from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import Append, Decision, HoldReply, Prepare
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import NEVER, UNNUMBERED, NamedOrigin, NamedQueue, Prepared
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST, SPAN_MAX

YEAR_MS = 365 * 24 * 3_600_000


def prepare(
    engine: MemoryEngine,
    transaction_id: str,
    *messages: SentMessage,
    group: str = "pay",
    number: int | None = None,
    bulk: bool = False,
) -> Decision:
    return engine.submit(
        Prepare(
            group=group,
            transaction_id=transaction_id,
            messages=messages,
            number=number,
            bulk=bulk,
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


def row(engine: MemoryEngine, half_offset: int) -> tuple[State, int, int]:
    """State, part and next check time of a row."""
    half = engine.core.table.get(half_offset)
    assert half is not None
    return half.state, half.part, half.next_at_ms


# One request.


def test_half_messages_are_held_and_invisible() -> None:
    engine = MemoryEngine()
    reply = held(prepare(engine, "t", message(b"a"), message(b"b", topic="stock")))
    assert (reply.half_offset, reply.count, reply.repeated) == (0, 2, False)
    assert len(set(reply.log_offsets)) == 2
    assert engine.pull("orders") == engine.pull("stock") == []
    assert engine.core.table.end == 2


def test_only_the_head_of_a_transaction_is_ever_due_for_a_check() -> None:
    engine = MemoryEngine()
    prepare(engine, "t", message(), message(), message(), number=0)
    prepare(engine, "t", message(), message(), number=1)
    check_at_ms = engine.clock.now_ms() + 6_000
    assert [row(engine, half) for half in range(5)] == [
        (State.PREPARED, FIRST | 3, check_at_ms),
        (State.PREPARED, 1, NEVER),
        (State.PREPARED, 2, NEVER),
        (State.PREPARED, FIRST | 2, NEVER),
        (State.PREPARED, 1, NEVER),
    ]
    assert [half.half_offset for half in engine.undecided()] == [0]


@pytest.mark.parametrize(
    ("check_after_ms", "wait_ms"),
    [
        # The policy's wait.
        (None, 6_000),
        (0, 0),
        (60_000, 60_000),
        # A time in the past means now.
        (-1, 0),
        # A check after parking makes no sense, and its time might not fit into the table.
        (2**63, CheckPolicy().park_after_ms),
    ],
)
def test_a_half_may_bring_its_own_time_before_the_first_check(
    check_after_ms: int | None, wait_ms: int
) -> None:
    engine = MemoryEngine()
    engine.prepare("t", check_after_ms=check_after_ms)
    assert row(engine, 0)[2] == engine.clock.now_ms() + wait_ms


def test_names_are_recorded_once_before_their_first_use() -> None:
    engine = MemoryEngine()
    first = prepare(engine, "t", message(), message(queue_id=1), message())
    second = prepare(engine, "u", message(queue_id=1), message(queue_id=2))
    assert first.records[:-1] == (
        NamedOrigin(0, "pay", "", 0),
        NamedQueue(0, "orders", 0),
        NamedQueue(1, "orders", 1),
    )
    assert second.records[:-1] == (NamedQueue(2, "orders", 2),)
    prepared = second.records[-1]
    assert isinstance(prepared, Prepared)
    assert (prepared.first, prepared.head, prepared.origin) == (3, 3, 0)
    assert (prepared.transaction_id, prepared.number) == ("u", UNNUMBERED)
    assert prepared.placed.queues == [1, 2]


def test_group_ledger_and_time_allowed_are_kept_with_the_transaction() -> None:
    engine = MemoryEngine()
    engine.prepare("t", group="pay", ledger="uuid-1", allowed_ms=30_000)
    engine.prepare("u", group="pay", ledger="uuid-2", allowed_ms=30_000)
    facts = [(half.transaction_id, half.ledger, half.allowed_ms) for half in engine.undecided()]
    assert facts == [("t", "uuid-1", 30_000), ("u", "uuid-2", 30_000)]


# Limits.


def test_there_is_an_end_to_the_groups_that_are_kept() -> None:
    engine = MemoryEngine()
    engine.core.limits = LimitsConfig(origins_max=1)
    held(prepare(engine, "t", message(b"a")))
    held(prepare(engine, "u", message(b"a")))
    assert refusal(prepare(engine, "v", message(b"a"), group="another")).code == "too_many_origins"


def test_a_request_without_messages_is_refused() -> None:
    engine = MemoryEngine()
    assert refusal(prepare(engine, "t")).code == "no_messages"
    assert refusal(prepare(engine, "t", bulk=True, number=0)).code == "no_messages"
    assert refusal(engine.submit(Append(messages=()))).code == "no_messages"


def test_a_request_holds_as_many_messages_as_the_policy_allows_and_no_more() -> None:
    engine = MemoryEngine(policy=CheckPolicy(messages_max=3))
    assert held(prepare(engine, "t", *[message()] * 3)).count == 3
    refused = refusal(prepare(engine, "u", *[message()] * 4))
    assert refused.code == "too_many_messages"
    assert refused.fields == {"count": 4}


def test_a_bulk_request_holds_as_many_messages_as_a_request_can_and_no_more() -> None:
    engine = MemoryEngine(policy=CheckPolicy(messages_max=3))
    one = message(b"")
    assert refusal(prepare(engine, "t", *[one] * (SPAN_MAX + 1), number=0, bulk=True)).code == (
        "too_many_messages"
    )
    decision = engine.core.decide(
        Prepare(group="g", transaction_id="t", messages=(one,) * SPAN_MAX, number=0, bulk=True), 0
    )
    (*_, prepared) = decision.records
    assert isinstance(prepared, Prepared)
    assert len(prepared.placed.queues) == SPAN_MAX


def test_a_transaction_grows_to_its_number_of_messages_and_no_further() -> None:
    engine = MemoryEngine(policy=CheckPolicy(messages_max=3))
    prepare(engine, "t", message(), number=0)
    assert held(prepare(engine, "t", message(), message(), number=1)).count == 2
    refused = refusal(prepare(engine, "t", message(), number=2))
    assert (refused.code, refused.fields["count"]) == ("too_many_messages", 4)


def test_a_bulk_transaction_has_no_limit_but_that_of_each_request() -> None:
    engine = MemoryEngine(policy=CheckPolicy(messages_max=3, transaction_bytes_max=2_048))
    for number in range(4):
        body = message(bytes(2_000))
        assert held(prepare(engine, "t", body, number=number, bulk=True)).half_offset == number
    assert engine.core.parts[0].messages == 4
    too_large = prepare(engine, "t", message(bytes(2_049)), number=4, bulk=True)
    assert refusal(too_large).code == "request_too_large"


def test_one_request_holds_as_many_bytes_as_the_policy_allows_and_no_more() -> None:
    engine = MemoryEngine(policy=CheckPolicy(transaction_bytes_max=2_048))
    exact = SentMessage(topic="orders", queue_id=0, body=bytes(2_000), properties=bytes(48))
    over = SentMessage(topic="orders", queue_id=0, body=bytes(2_001), properties=bytes(48))
    assert held(prepare(engine, "t", exact)).count == 1
    assert refusal(prepare(engine, "u", over)).code == "request_too_large"


def test_a_transaction_grows_to_its_bytes_as_stored_and_no_further() -> None:
    """Messages already held count with their headers, as the log stores them."""
    engine = MemoryEngine(policy=CheckPolicy(transaction_bytes_max=2_048))
    prepare(engine, "t", message(bytes(500)), number=0)
    stored = engine.core.table.sizes(0, 1)
    over = prepare(engine, "t", message(bytes(2_049 - stored)), number=1)
    assert refusal(over).code == "transaction_too_large"
    prepare(engine, "t", message(bytes(500)), number=1)
    stored = engine.core.table.sizes(0, 2)
    assert engine.core.parts[0].bytes == stored
    over = prepare(engine, "t", message(bytes(2_049 - stored)), number=2)
    assert refusal(over).code == "transaction_too_large"
    assert held(prepare(engine, "t", message(bytes(2_048 - stored)), number=2)).count == 1


def test_ordinary_messages_have_the_same_limits_per_request() -> None:
    engine = MemoryEngine(policy=CheckPolicy(transaction_bytes_max=2_048))
    one = message(b"")
    too_many = engine.submit(Append(messages=(one,) * (SPAN_MAX + 1)))
    too_large = engine.submit(Append(messages=(message(bytes(2_049)),)))
    assert refusal(too_many).code == "too_many_messages"
    assert refusal(too_large).code == "request_too_large"
    assert engine.append(message(bytes(2_048))).queue_offsets == [0]


def test_a_delay_into_the_past_or_beyond_all_use_is_refused() -> None:
    engine = MemoryEngine()
    now_ms = engine.clock.now_ms()
    for delay_ms in (10 * YEAR_MS + 1, 2**63 - 1):
        late_half = prepare(engine, "t", message(), message(deliver_after_ms=delay_ms))
        late = engine.submit(Append(messages=(message(deliver_at_ms=now_ms + delay_ms),)))
        assert refusal(late_half).code == refusal(late).code == "delay_illegal"
    assert refusal(prepare(engine, "t", message(deliver_after_ms=-1))).code == "delay_illegal"
    assert held(prepare(engine, "t", message(deliver_after_ms=10 * YEAR_MS))).count == 1
    assert engine.append(message(deliver_at_ms=now_ms + 10 * YEAR_MS)).queue_offsets == [-1]


# Ordinary messages.


def test_ordinary_messages_are_visible_at_once_each_at_the_end_of_its_queue() -> None:
    engine = MemoryEngine()
    first = engine.append(message(b"a"), message(b"b", queue_id=1), message(b"c"))
    second = engine.append(message(b"d"))
    assert first.queue_offsets == [0, 0, 1]
    assert second.queue_offsets == [2]
    assert [m.body for m in engine.pull("orders")] == [b"a", b"c", b"d"]
    assert [m.body for m in engine.pull("orders", 1)] == [b"b"]


def test_a_message_for_later_has_no_queue_offset_until_its_time_comes() -> None:
    engine = MemoryEngine()
    at_ms = engine.clock.now_ms() + 5_000
    reply = engine.append(
        message(b"later", deliver_at_ms=at_ms + 1), message(b"sooner", deliver_at_ms=at_ms)
    )
    assert reply.queue_offsets == [-1, -1]
    assert engine.pull("orders") == []
    engine.clock.set(at_ms)
    engine.release_due()
    assert [m.body for m in engine.pull("orders")] == [b"sooner"]
    engine.append(message(b"now"))
    engine.clock.advance(ms=1)
    engine.release_due()
    assert [m.body for m in engine.pull("orders")] == [b"sooner", b"now", b"later"]


def test_messages_whose_time_has_passed_already_are_visible_at_once() -> None:
    engine = MemoryEngine()
    now_ms = engine.clock.now_ms()
    reply = engine.append(message(deliver_at_ms=now_ms), message(deliver_at_ms=1), message())
    assert reply.queue_offsets == [0, 1, 2]


def test_messages_for_now_and_for_later_do_not_mix_in_one_request() -> None:
    engine = MemoryEngine()
    later = message(deliver_at_ms=engine.clock.now_ms() + 1)
    decision = engine.submit(Append(messages=(message(), later)))
    assert refusal(decision).code == "mixed_delivery_times"
