"""The offsets of a group or a topic are found without scanning all offsets."""

from __future__ import annotations

from escrowmq.store.meta.meta import OffsetKey
from escrowmq.store.meta.offset_index import OffsetIndex

KEYS: list[OffsetKey] = [("a", "t", 0), ("a", "t", 3), ("a", "u", 1), ("b", "t", 2), ("b", "v", 0)]


def indexed() -> tuple[dict[OffsetKey, int], OffsetIndex]:
    offsets: dict[OffsetKey, int] = {}
    index = OffsetIndex(offsets)
    for key in reversed(KEYS):
        offsets[key] = 7
        index.add(key)
    return offsets, index


def test_the_offsets_of_a_group_and_of_a_topic_are_found() -> None:
    offsets, index = indexed()
    assert set(index.of_group("a")) == {("a", "t", 0), ("a", "t", 3), ("a", "u", 1)}
    assert set(index.of_topic("t")) == {("a", "t", 0), ("a", "t", 3), ("b", "t", 2)}
    assert list(index.of_group("nobody")) == list(index.of_topic("nothing")) == []
    # A removed offset is not returned.
    del offsets["a", "t", 0]
    assert set(index.of_group("a")) == {("a", "t", 3), ("a", "u", 1)}


def test_a_group_or_a_topic_that_is_gone_leaves_nothing() -> None:
    _, index = indexed()
    assert set(index.taken(topic="t")) == {("a", "t", 0), ("a", "t", 3), ("b", "t", 2)}
    assert set(index.of_group("a")) == {("a", "u", 1)}
    assert index.taken(group="b") == [("b", "v", 0)]
    assert list(index.of_topic("v")) == []
    assert index.taken(group="nobody") == []
    assert set(index.of_topic("u")) == {("a", "u", 1)}
