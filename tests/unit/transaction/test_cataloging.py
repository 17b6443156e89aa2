"""Topics, consumer groups and settings: how they change, and what that does to messages."""

from __future__ import annotations

from typing import Literal

import pytest

from escrowmq.model.catalog import Group, Setting, Topic
from escrowmq.model.limits_config import LimitsConfig
from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import (
    Cataloged,
    Command,
    Decision,
    MarkCatalog,
    Prepare,
    PutGroup,
    PutSetting,
    PutTopic,
    RemoveGroup,
    RemoveSetting,
    RemoveTopic,
)
from escrowmq.transaction.memory.catalog import Catalog
from escrowmq.transaction.memory.expired_names import BYTES
from escrowmq.transaction.memory.names import DELETED_MAX, Names
from escrowmq.transaction.records import (
    GroupPut,
    NamedQueue,
    TopicPut,
    TopicRemoved,
)
from tests.unit.columns import columns_of

HOUR_MS = 3_600_000


def engine_of(*topics: str) -> MemoryEngine:
    """An engine whose log keeps topics, with these topics."""
    engine = MemoryEngine()
    engine.submit(MarkCatalog(mark="kept"))
    for name in topics:
        engine.submit(PutTopic(topic=Topic(name=name)))
    return engine


def remove(
    engine: MemoryEngine,
    name: str = "orders",
    *,
    reason: Literal["deleted", "expired"] = "deleted",
    is_forced: bool = False,
) -> Decision:
    return engine.submit(RemoveTopic(name=name, by="admin", reason=reason, is_forced=is_forced))


def code(decision: Decision) -> str:
    assert decision.refused is not None
    return decision.refused.code


def bodies(engine: MemoryEngine) -> list[bytes]:
    return [one.body for one in engine.pull("orders")]


def test_a_topic_that_is_made_again_is_empty_and_starts_at_0() -> None:
    engine = engine_of("orders")
    engine.append(message(b"old"), message(b"older", queue_id=3))
    remove(engine)
    assert bodies(engine) == []
    engine.submit(PutTopic(topic=Topic(name="orders")))
    assert bodies(engine) == []
    assert engine.append(message(b"new")).queue_offsets == [0]
    assert bodies(engine) == [b"new"]
    assert bodies(engine.restart()) == [b"new"]


def test_numbers_of_queues_and_incarnations_are_never_used_again() -> None:
    engine = engine_of("orders")
    seen: set[int] = set()
    incarnations = set()
    for _ in range(5):
        engine.append(message(), message(queue_id=1))
        numbers = set(engine.core.names.queues_of["orders"].values())
        assert not seen & numbers
        seen |= numbers
        incarnations.add(engine.core.catalog.topics["orders"].incarnation)
        named = [engine.core.names.named(number) for number in numbers]
        assert {one.incarnation for one in named} == {max(incarnations)}
        remove(engine)
        engine.submit(PutTopic(topic=Topic(name="orders")))
    assert len(incarnations) == 5
    assert engine.core.names.queues == {}
    assert engine.core.queue_ends == {}
    assert engine.core.names.deleted == {}


def test_only_a_new_incarnation_is_told_to_be_remade() -> None:
    engine = engine_of("orders")
    born = engine.core.catalog.topics["orders"].born
    engine.submit(PutTopic(topic=Topic(name="orders", perm=4)))
    kept = engine.core.catalog.topics["orders"]
    assert (kept.incarnation, kept.born, kept.is_remade, kept.topic.perm) == (1, born, False, 4)
    remove(engine)
    engine.submit(PutTopic(topic=Topic(name="orders")))
    again = engine.core.catalog.topics["orders"]
    assert (again.incarnation, again.is_remade) == (2, True)
    assert again.born > born
    # A change does not reset it.
    engine.submit(PutTopic(topic=Topic(name="orders", perm=2)))
    assert engine.core.catalog.topics["orders"].is_remade


def test_a_command_that_changes_nothing_is_not_written() -> None:
    engine = engine_of("orders")
    engine.submit(PutGroup(group=Group(name="readers")))
    engine.submit(PutSetting(setting=Setting(name="kv/a/b", value="1")))
    commands: list[Command] = [
        PutTopic(topic=Topic(name="orders")),
        PutTopic(topic=Topic(name="orders", perm=2), is_only_made=True),
        RemoveTopic(name="unknown", by="admin"),
        PutGroup(group=Group(name="readers")),
        PutGroup(group=Group(name="readers", retry_max=1), is_only_made=True),
        RemoveGroup(name="unknown", by="admin"),
        PutSetting(setting=Setting(name="kv/a/b", value="1")),
        RemoveSetting(name="unknown"),
    ]
    for command in commands:
        decision = engine.submit(command)
        assert decision.records == ()
        assert decision.reply == Cataloged(is_changed=False)


def test_groups_and_settings_are_kept_changed_and_forgotten() -> None:
    engine = engine_of()
    engine.submit(PutGroup(group=Group(name="readers")))
    born = engine.core.catalog.groups["readers"].born
    engine.submit(PutGroup(group=Group(name="readers", retry_max=3)))
    engine.submit(PutSetting(setting=Setting(name="a", value={"b": [1]})))
    catalog = engine.restart().core.catalog
    assert catalog.group("readers") == Group(name="readers", retry_max=3)
    assert catalog.groups["readers"].born == born
    assert catalog.settings["a"].value == {"b": [1]}
    engine.submit(RemoveGroup(name="readers", by="admin"))
    engine.submit(RemoveSetting(name="a"))
    assert engine.core.catalog.group("readers") is None
    assert engine.core.catalog.settings == {}
    engine.submit(PutGroup(group=Group(name="readers")))
    assert engine.core.catalog.groups["readers"].born > born


def test_more_than_may_be_kept_is_refused_but_what_is_there_can_be_changed() -> None:
    engine = engine_of("orders")
    engine.core.limits = LimitsConfig(topics_max=1, groups_max=0, settings_max=0)
    refused: dict[str, Command] = {
        "topics_limit": PutTopic(topic=Topic(name="more")),
        "groups_limit": PutGroup(group=Group(name="readers")),
        "settings_limit": PutSetting(setting=Setting(name="a", value=1)),
    }
    for expected, command in refused.items():
        assert code(engine.submit(command)) == expected
    assert engine.submit(PutTopic(topic=Topic(name="orders", perm=2))).refused is None


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (Topic(name=""), "bad_topic"),
        (Topic(name="a", write_queue_count=-1), "bad_topic"),
        (Topic(name="a", attributes={"b": "c" * 65_536}), "topic_too_large"),
        (Topic(name="a", attributes={"b": object()}), "bad_topic"),
    ],
)
def test_a_document_that_cannot_be_kept_is_refused(document: Topic, expected: str) -> None:
    assert code(engine_of().submit(PutTopic(topic=document))) == expected


def test_where_the_log_keeps_topics_a_message_needs_one() -> None:
    """The topic may have been deleted after the sender looked it up."""
    engine = engine_of("orders")
    with pytest.raises(Exception, match="topic_unknown"):
        engine.append(message(topic="other"))
    with pytest.raises(Exception, match="queue_id_illegal"):
        engine.append(message(queue_id=8))
    with pytest.raises(Exception, match="topic_unknown"):
        engine.prepare("t", message(topic="other"))
    columns = columns_of([message(topic="other")])
    many = Prepare(group="pay", transaction_id="t", messages=(), number=0, columns=columns)
    assert code(engine.submit(many)) == "topic_unknown"
    engine.append(message(queue_id=7))
    assert list(engine.core.names.queues.values()) == [NamedQueue(0, "orders", 7, 1)]


# Records.


def test_records_applied_again_on_a_later_state_change_nothing() -> None:
    """A store that lost its projections replays its log on top of its checkpoint."""
    engine = engine_of("orders", "other")
    engine.append(message(b"old"))
    engine.prepare("t", message(b"half"))
    remove(engine, is_forced=True)
    engine.submit(PutTopic(topic=Topic(name="orders")))
    engine.append(message(b"new"))
    engine.submit(PutGroup(group=Group(name="readers")))
    engine.submit(RemoveGroup(name="readers", by="admin"))
    engine.submit(PutGroup(group=Group(name="readers")))
    engine.submit(MarkCatalog(mark="offsets_lost"))
    before = engine.core.catalog.saved()
    names = dict(engine.core.names.queues), engine.core.names.queues_end
    ends = dict(engine.core.queue_ends)
    engine.apply(engine.frames)
    assert engine.core.catalog.saved() == before
    assert (engine.core.names.queues, engine.core.names.queues_end) == names
    assert engine.core.queue_ends == ends


def test_a_catalog_is_saved_and_loaded() -> None:
    engine = engine_of("orders", "gone")
    remove(engine, "gone")
    engine.submit(PutGroup(group=Group(name="readers")))
    engine.submit(PutSetting(setting=Setting(name="a", value=1)))
    engine.submit(MarkCatalog(mark="offsets_lost", detail="a test"))
    loaded = Catalog()
    loaded.load(engine.core.catalog.saved())
    assert loaded.saved() == engine.core.catalog.saved()
    assert loaded.has_lost_offsets("readers")
    engine.submit(PutGroup(group=Group(name="younger")))
    assert not engine.core.catalog.has_lost_offsets("younger")
    assert not engine.core.catalog.has_lost_offsets("unknown")


def test_deleted_names_are_never_forgotten_and_take_a_fixed_space() -> None:
    catalog = Catalog()
    for number in range(1_000):
        catalog.apply(TopicRemoved(f"t{number}", number, [], "deleted", "admin"), number)
    assert all(catalog.removed.may_have(f"t{number}") for number in range(1_000))
    assert len(catalog.saved().removed_names) == BYTES


def test_of_very_many_deleted_queues_the_oldest_names_are_forgotten() -> None:
    names = Names()
    for number in range(DELETED_MAX + 5):
        names.apply(NamedQueue(number, f"t{number}", 0))
        names.remove(number, is_held=True)
        names.remove(number, is_held=True)
    assert len(names.deleted) == DELETED_MAX
    assert names.named(4) == NamedQueue(4, "", 0)
    assert names.named(5).topic == "t5"


def test_numbers_that_damage_took_are_not_used_again() -> None:
    """The record that made a topic may be lost while the record of its queue is not."""
    engine = engine_of()
    engine.core.apply(NamedQueue(0, "lost", 0, 7), engine.frames[0].where)
    engine.submit(PutTopic(topic=Topic(name="orders")))
    assert engine.core.catalog.topics["orders"].incarnation == 8
    decision = remove(engine, "lost")
    assert decision.records == (TopicRemoved("lost", 0, [0], "deleted", "admin", []),)


def test_before_the_log_keeps_topics_they_have_no_incarnation() -> None:
    engine = MemoryEngine()
    engine.append(message())
    engine.submit(PutTopic(topic=Topic(name="orders")))
    engine.submit(PutGroup(group=Group(name="readers")))
    kept = engine.core.catalog.topics["orders"]
    assert (kept.incarnation, kept.born) == (0, 0)
    assert isinstance(engine.frames[1].records[0], TopicPut)
    assert isinstance(engine.frames[2].records[0], GroupPut)
