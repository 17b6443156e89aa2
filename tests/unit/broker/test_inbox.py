"""Inbox: which commands the next batch takes, and for which senders it is full."""

from __future__ import annotations

from escrowmq.broker.config import WriterConfig
from escrowmq.broker.write.inbox import LITTLE, LITTLE_BYTES, MUCH_TAKEN, Inbox, QueuedCommand
from escrowmq.model.resolution import Resolution
from escrowmq.transaction.commands import Append, Decision, End

MESSAGE = Append(messages=())
DECISION = End(half_offset=0, resolution=Resolution.COMMIT, by="p")


def nobody(_end: Decision | BaseException) -> None:
    """Ignore the result."""


def put(inbox: Inbox, source: str, count: int = 1, size: int = 1) -> list[QueuedCommand]:
    return [inbox.put(MESSAGE, size, nobody, source) for _ in range(count)]


def decide(inbox: Inbox, source: str, count: int = 1) -> list[QueuedCommand]:
    return [inbox.put(DECISION, None, nobody, source) for _ in range(count)]


def inbox_of(**fields: int) -> Inbox:
    return Inbox(WriterConfig(**fields))


def test_a_sender_with_few_commands_gets_all_into_the_next_batch() -> None:
    inbox = inbox_of()
    flood = put(inbox, "flood", 500)
    mine = put(inbox, "me", LITTLE)
    yours = put(inbox, "you", 1)
    batch = inbox.take()
    assert batch == mine + yours + flood[:MUCH_TAKEN]
    assert len(inbox) == 500 - MUCH_TAKEN


def test_senders_with_many_commands_take_turns() -> None:
    inbox = inbox_of()
    floods = {name: put(inbox, name, 200) for name in ("a", "b", "c")}
    share = MUCH_TAKEN // 3
    assert inbox.take() == floods["a"][:share] + floods["b"][:share] + floods["c"][:share]
    many = inbox_of()
    first = {number: put(many, str(number), 200)[0] for number in range(MUCH_TAKEN + 2)}
    assert many.take() == [first[number] for number in range(MUCH_TAKEN)]
    assert many.take()[:2] == [first[MUCH_TAKEN], first[MUCH_TAKEN + 1]]


def test_each_sender_s_commands_stay_in_order() -> None:
    inbox = inbox_of()
    flood = put(inbox, "flood", 300)
    taken: list[QueuedCommand] = []
    while inbox:
        put(inbox, "me")
        taken += [one for one in inbox.take() if one in flood]
    assert taken == flood


def test_large_messages_count_as_much_and_one_at_a_time_fits() -> None:
    inbox = inbox_of()
    large = put(inbox, "large", 3, size=LITTLE_BYTES)
    mine = put(inbox, "me")
    assert inbox.take() == [*mine, large[0], large[1]]
    assert inbox.take() == [large[2]]


def test_decisions_go_first_and_the_batch_has_an_end() -> None:
    inbox = inbox_of(batch_max=10)
    messages = put(inbox, "a", 6) + put(inbox, "b", 6)
    decisions = decide(inbox, "a", 4)
    assert inbox.take() == decisions + messages[:6]
    assert inbox.take() == messages[6:]
    assert inbox.take() == []


def test_decisions_can_have_batches_of_their_own() -> None:
    inbox = Inbox(WriterConfig(), are_decisions_alone=True)
    messages, decisions = put(inbox, "a", 2), decide(inbox, "a", 2)
    assert inbox.take() == decisions
    assert inbox.take() == messages


def test_commands_without_a_sender_are_taken_whole() -> None:
    inbox = inbox_of()
    bulk = [inbox.put(DECISION, None, nobody) for _ in range(2 * LITTLE)]
    assert inbox.take() == bulk


def test_more_than_a_batch_of_one_sender_is_taken_in_pieces() -> None:
    inbox = inbox_of(batch_max=4)
    messages = put(inbox, "a", 10)
    assert [inbox.take(), inbox.take(), inbox.take()] == [
        messages[:4],
        messages[4:8],
        messages[8:],
    ]


def test_cancelled_commands_are_left_out() -> None:
    inbox = inbox_of()
    first, second = put(inbox, "a", 2)
    first.is_wanted = False
    assert inbox.take() == [second]


def test_the_inbox_is_full_for_the_senders_that_fill_it_and_not_for_others() -> None:
    inbox = inbox_of(messages_max=100, inbox_max=200)
    put(inbox, "flood", 100)
    assert not inbox.has_room(1, "flood")
    assert not inbox.has_room(1)
    assert inbox.has_room(1, "me")
    put(inbox, "others", 50)
    assert not inbox.has_room(1, "me")
    assert inbox.has_room(None, "me")


def test_the_byte_limit_holds_for_the_senders_that_reach_it_and_not_for_others() -> None:
    inbox = inbox_of(bytes_max=1_000)
    assert inbox.has_room(5_000, "me")
    put(inbox, "flood", 1, size=1_000)
    assert not inbox.has_room(1, "flood")
    assert inbox.has_room(1_000, "me")
    assert not inbox.has_room(1_001, "me")
    assert inbox.has_room(None)


def test_all_can_be_taken_out() -> None:
    inbox = inbox_of()
    every = put(inbox, "a", 2) + decide(inbox, "b")
    assert inbox.clear() == every
    assert len(inbox) == 0
