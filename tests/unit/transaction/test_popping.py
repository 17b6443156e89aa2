"""Pop positions: what is acknowledged stays acknowledged, and nothing else does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from escrowmq.model.catalog import Group, Topic
from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import (
    Append,
    MarkCatalog,
    PutGroup,
    PutTopic,
    RemoveGroup,
    RemoveTopic,
)
from escrowmq.transaction.memory import pops
from escrowmq.transaction.memory.pops import AHEAD_MAX, PopPosition, PopPositions
from escrowmq.transaction.pop_commands import (
    Acknowledge,
    BuryMessages,
    PlacePops,
    PopAcks,
    PopPlace,
)
from escrowmq.transaction.pop_records import PopAcknowledged, PopPlaced

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=12)
START = PlacePops(group="readers", places=(PopPlace(0, 0),))


def engine_with(count: int) -> MemoryEngine:
    engine = MemoryEngine()
    for command in (
        MarkCatalog(mark="kept"),
        PutTopic(topic=Topic(name="orders")),
        PutGroup(group=Group(name="readers")),
        Append(messages=tuple(message(b"m") for _ in range(count))),
    ):
        assert engine.submit(command).refused is None
    return engine


def acks(*ranges: tuple[int, int], queue: int = 0, start: int = 0) -> Acknowledge:
    return Acknowledge(group="readers", acks=(PopAcks(queue, start, ranges),))


def offsets_of(position: PopPosition, end: int) -> set[int]:
    return {offset for offset in range(end) if position.has(offset)}


@given(st.lists(RANGES, max_size=5), st.integers(0, 20))
def test_a_position_has_what_was_acknowledged_and_nothing_else(
    batches: list[list[tuple[int, int]]], start: int
) -> None:
    position, expected = PopPosition(0), set(range(start))
    for ranges in batches:
        position = position.acknowledged(start, ranges)
        expected |= {at for first, count in ranges for at in range(first, first + count)}
        assert offsets_of(position, 80) == expected
        assert not position.has(position.prefix)
        # Again, or in parts, it is the same.
        assert position.acknowledged(start, ranges) == position


def test_an_acknowledgement_too_far_ahead_is_left_out() -> None:
    position = PopPosition(5).acknowledged(0, [(AHEAD_MAX, 10)])
    assert offsets_of(position, AHEAD_MAX + 20) == {*range(5), *range(AHEAD_MAX, AHEAD_MAX + 5)}
    assert len(position.above) == AHEAD_MAX // 8


def test_a_group_starts_acknowledges_and_ends() -> None:
    engine = engine_with(6)
    assert engine.submit(START).records == (PopPlaced("readers", 0, 0),)
    assert engine.submit(acks((2, 2))).records == (PopAcknowledged("readers", 0, 0, [(2, 2)]),)
    assert engine.submit(acks((2, 1))).records == ()
    assert engine.submit(acks((0, 2))).records == (PopAcknowledged("readers", 0, 4, []),)
    # Retention deleted the queue up to 5.
    assert engine.submit(acks(start=5)).records == (PopAcknowledged("readers", 0, 5, []),)
    assert engine.core.pops.get("readers", 0) == PopPosition(5)
    ended = PlacePops(group="readers", places=(PopPlace(0, 5, is_ended=True),))
    engine.submit(ended)
    assert engine.core.pops.get("readers", 0) == PopPosition(5, is_ended=True)
    again = engine.restart()
    assert again.core.pops.groups == engine.core.pops.groups


def test_offsets_outside_the_queue_cannot_be_acknowledged() -> None:
    engine = engine_with(2)
    engine.submit(START)
    assert engine.submit(acks((1, 2), (-1, 1))).records == ()
    assert engine.submit(acks(start=9)).records == (PopAcknowledged("readers", 0, 2, []),)
    assert engine.submit(acks((0, 1), queue=7)).records == ()


def test_a_dead_letter_and_its_acknowledgement_are_one_frame() -> None:
    engine = engine_with(2)
    engine.submit(START)
    engine.submit(PutTopic(topic=Topic(name="%DLQ%readers")))
    bury = BuryMessages(messages=(message(b"m", topic="%DLQ%readers"),), acknowledges=acks((0, 1)))
    frames = len(engine.frames)
    decision = engine.submit(bury)
    assert decision.refused is None
    assert len(engine.frames) == frames + 1
    assert engine.core.pops.get("readers", 0) == PopPosition(1)
    assert engine.core.queue_ends[1] == 1
    refused = engine.submit(BuryMessages(messages=(), acknowledges=acks((1, 1)))).refused
    assert refused is not None
    assert engine.core.pops.get("readers", 0) == PopPosition(1)


def test_a_position_must_be_of_a_known_group_and_in_its_queue() -> None:
    engine = engine_with(2)
    for group, place, code in (
        ("nobody", PopPlace(0, 0), "group_unknown"),
        ("readers", PopPlace(0, 3), "bad_offset"),
        ("readers", PopPlace(0, -1), "bad_offset"),
    ):
        refused = engine.submit(PlacePops(group=group, places=(place,))).refused
        assert refused is not None
        assert refused.code == code
    # The queue of a topic that was removed needs no position.
    assert engine.submit(PlacePops(group="readers", places=(PopPlace(9, 0),))).records == ()
    assert engine.core.pops.count == 0


def test_positions_have_a_limit() -> None:
    engine = engine_with(1)
    full = {number: PopPosition(0) for number in range(1, pops.POSITIONS_MAX + 1)}
    engine.core.pops = PopPositions({"others": full})
    refused = engine.submit(START).refused
    assert refused is not None
    assert refused.code == "pop_positions_limit"


def test_positions_end_with_their_topic_and_their_group() -> None:
    engine = engine_with(2)
    engine.submit(PutGroup(group=Group(name="others")))
    engine.submit(START)
    engine.submit(PlacePops(group="others", places=(PopPlace(0, 0),)))
    engine.submit(RemoveGroup(name="readers", by="me"))
    assert engine.core.pops.groups.keys() == {"others"}
    engine.submit(PutTopic(topic=Topic(name="kept")))
    engine.submit(Append(messages=(message(b"m", topic="kept"),)))
    engine.submit(PlacePops(group="others", places=(PopPlace(1, 0),)))
    engine.submit(RemoveTopic(name="orders", by="me"))
    assert engine.core.pops.groups == {"others": {1: PopPosition(0)}}
    # A replay over this state must not bring the position back.
    engine.core.pops.apply(PopPlaced("others", 0, 0), engine.core.names.queues)
    engine.core.pops.apply(PopAcknowledged("nobody", 1, 1, []), engine.core.names.queues)
    assert engine.core.pops.groups == {"others": {1: PopPosition(0)}}


def test_a_change_of_mode_starts_from_the_lower_position() -> None:
    engine = engine_with(9)

    def placed(place: PopPlace) -> PopPosition | None:
        engine.submit(PlacePops(group="readers", places=(place,)))
        return engine.core.pops.get("readers", 0)

    assert placed(PopPlace(0, 2)) == PopPosition(2)
    engine.submit(acks((4, 1)))
    above = PopPosition(2).acknowledged(0, [(4, 1)]).above
    assert placed(PopPlace(0, 9, is_ended=True)) == PopPosition(2, above, is_ended=True)
    # The group has pulled up to 7, or only up to 1.
    assert placed(PopPlace(0, 7)) == PopPosition(2, above)
    assert placed(PopPlace(0, 1)) == PopPosition(1)
    assert placed(PopPlace(0, 8, is_reset=True)) == PopPosition(8)


def test_a_removed_topic_takes_its_positions_along() -> None:
    saved = {"both": {0: PopPosition(1), 1: PopPosition(2)}, "one": {0: PopPosition(3)}}
    positions = PopPositions(saved)
    positions.forget_queues([0])
    assert positions.groups == {"both": {1: PopPosition(2)}}
    assert positions.count == 1
