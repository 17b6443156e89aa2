"""Consumer groups and topics expire by the last recorded use."""

from __future__ import annotations

from escrowmq.model.catalog import Group, Topic
from escrowmq.model.limits_config import DAY_MS, LimitsConfig
from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import (
    Append,
    Command,
    MarkCatalog,
    Prepare,
    PutGroup,
    PutTopic,
    RemoveGroup,
    RemoveTopic,
)
from escrowmq.transaction.expiry_commands import ExpireGroups, ExpireTopic, NoteUses
from escrowmq.transaction.memory.uses import NameUses, slack_ms
from escrowmq.transaction.records import GroupRemoved, NamesUsed, Record, TopicRemoved

EXPIRE_MS = 30 * DAY_MS
LATER_MS = EXPIRE_MS + DAY_MS + 1


def engine_with(*commands: Command) -> MemoryEngine:
    engine = MemoryEngine()
    for command in (MarkCatalog(mark="kept"), *commands):
        assert engine.submit(command).refused is None
    return engine


def written(engine: MemoryEngine, command: Command) -> tuple[Record, ...]:
    return engine.submit(command).records


def group(name: str, *, is_only_made: bool = True) -> PutGroup:
    return PutGroup(group=Group(name=name), is_only_made=is_only_made)


def topic(name: str, *, is_only_made: bool = True) -> PutTopic:
    return PutTopic(topic=Topic(name=name), is_only_made=is_only_made)


def test_a_use_is_noted_once_a_day_or_ten_times_before_a_name_expires() -> None:
    assert slack_ms(LimitsConfig()) == DAY_MS
    assert slack_ms(LimitsConfig(unused_expire_ms=1_000)) == 100


def test_uses_are_noted_of_names_that_are_there_and_not_twice_a_day() -> None:
    engine = engine_with(group("readers"), topic("orders"))
    note = NoteUses(groups=("readers", "nobody"), topics=("orders", "nothing"))
    assert written(engine, note) == ()
    engine.clock.advance(ms=DAY_MS)
    assert written(engine, note) == (NamesUsed(["readers"], ["orders"]),)
    assert written(engine, note) == ()
    engine.clock.advance(ms=DAY_MS)
    assert written(engine, NoteUses(topics=("orders",))) == (NamesUsed([], ["orders"]),)
    assert written(engine, NoteUses(groups=("readers",))) == (NamesUsed(["readers"], []),)
    uses = engine.core.uses
    assert uses.groups == {"readers": engine.clock.now_ms()}
    assert uses.topics == {"orders": engine.clock.now_ms()}


def test_a_group_expires_when_it_was_not_used_for_long() -> None:
    engine = engine_with(group("dead"), group("alive"), group("made", is_only_made=False))
    engine.clock.advance(ms=2 * DAY_MS)
    engine.submit(NoteUses(groups=("alive",)))
    engine.clock.advance(ms=LATER_MS - 2 * DAY_MS - 1)
    everybody = ExpireGroups(names=("dead", "alive", "made", "nobody"))
    assert written(engine, everybody) == ()
    engine.clock.advance(ms=1)
    (removed,) = written(engine, everybody)
    assert isinstance(removed, GroupRemoved)
    assert (removed.name, removed.reason) == ("dead", "expired")
    assert written(engine, everybody) == ()
    catalog = engine.core.catalog
    assert set(catalog.groups) == {"alive", "made"}
    assert "dead" not in engine.core.uses.groups
    # It has lost its offsets, even after it returns; a deleted group starts over.
    assert catalog.has_lost_offsets("dead")
    engine.submit(group("dead"))
    assert catalog.has_lost_offsets("dead")
    engine.submit(RemoveGroup(name="alive", by="ann"))
    assert not catalog.has_lost_offsets("alive")


def test_a_name_that_an_operator_sets_no_longer_counts_as_made_by_use() -> None:
    engine = engine_with(group("readers"), topic("orders"))
    # A second member, or message, changes nothing.
    assert written(engine, group("readers")) == ()
    assert written(engine, topic("orders")) == ()
    for command in (group("readers", is_only_made=False), topic("orders", is_only_made=False)):
        assert len(written(engine, command)) == 1
        assert written(engine, command) == ()
    engine.clock.advance(ms=LATER_MS)
    assert written(engine, ExpireGroups(names=("readers",))) == ()
    assert written(engine, ExpireTopic(name="orders", queue_ends={})) == ()


def test_a_topic_expires_when_it_is_empty_and_was_not_used_for_long() -> None:
    engine = engine_with(topic("orders"), topic("%RETRY%readers", is_only_made=False))
    engine.submit(Append(messages=(message(b"a", topic="orders"),)))
    engine.clock.advance(ms=LATER_MS - 1)
    expire = ExpireTopic(name="orders", queue_ends={0: 1})
    assert written(engine, expire) == ()
    engine.clock.advance(ms=1)
    # A message arrived since the queue ends were read, or there is no such topic.
    assert written(engine, ExpireTopic(name="orders", queue_ends={0: 0})) == ()
    assert written(engine, ExpireTopic(name="nothing", queue_ends={})) == ()
    (removed,) = written(engine, expire)
    assert isinstance(removed, TopicRemoved)
    assert (removed.name, removed.reason, removed.queues) == ("orders", "expired", [0])
    assert len(written(engine, ExpireTopic(name="%RETRY%readers", queue_ends={}))) == 1
    assert engine.core.uses.topics == {}


def test_a_topic_with_something_undecided_does_not_expire() -> None:
    engine = engine_with(topic("orders"))
    held = message(b"a", topic="orders")
    engine.submit(Prepare(group="pay", transaction_id="t", messages=(held,)))
    engine.clock.advance(ms=LATER_MS)
    expire = ExpireTopic(name="orders", queue_ends={0: 0})
    assert written(engine, expire) == ()
    engine.rollback(0)
    assert len(written(engine, expire)) == 1


def test_uses_survive_a_replay_and_a_checkpoint() -> None:
    engine = engine_with(group("readers"), topic("orders"))
    engine.clock.advance(ms=DAY_MS)
    engine.submit(NoteUses(groups=("readers",), topics=("orders",)))
    engine.submit(RemoveTopic(name="orders", by="ann"))
    engine.submit(topic("orders"))
    before = engine.core.uses.saved()
    assert engine.restart().core.uses.saved() == before
    engine.apply(engine.frames)
    assert engine.core.uses.saved() == before
    loaded = NameUses()
    loaded.load(before)
    assert loaded.saved() == before


def test_the_use_of_a_name_that_is_gone_is_not_kept() -> None:
    """A log may be replayed on a state in which the name is already deleted."""
    engine = engine_with(group("readers"))
    uses = NameUses()
    uses.apply(NamesUsed(["readers", "gone"], ["gone"]), 7, engine.core.catalog)
    assert (uses.groups, uses.topics) == ({"readers": 7}, {})
