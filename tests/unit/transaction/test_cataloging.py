"""Topics, consumer groups and settings: made, changed, removed, and what that does to messages."""

from __future__ import annotations

from typing import Literal

import pytest

from escrowmq.model.catalog import Group, Setting, Topic
from escrowmq.model.limits_config import LimitsConfig
from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.catalog import REMOVED_MAX, Catalog
from escrowmq.transaction.checking import outcome_of
from escrowmq.transaction.commands import (
    Abandon,
    AttemptClaim,
    Carry,
    Cataloged,
    Command,
    DecideBatch,
    Decision,
    End,
    MarkCatalog,
    PutGroup,
    PutSetting,
    PutTopic,
    RemoveGroup,
    RemoveSetting,
    RemoveTopic,
    Resume,
    Verdict,
    VerdictKind,
    Verdicts,
)
from escrowmq.transaction.names import DELETED_MAX, Names
from escrowmq.transaction.records import (
    NOWHERE,
    GroupPut,
    Moved,
    NamedQueue,
    Parked,
    Released,
    TopicPut,
    TopicRemoved,
)
from escrowmq.transaction.states import Resolution, State

HOUR_MS = 3_600_000


def engine_of(*topics: str) -> MemoryEngine:
    """An engine whose log keeps topics, with these."""
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
    # It stays so when it is changed.
    engine.submit(PutTopic(topic=Topic(name="orders", perm=2)))
    assert engine.core.catalog.topics["orders"].is_remade


def test_what_does_not_change_anything_is_not_written() -> None:
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
    """It may have been deleted since its sender looked."""
    engine = engine_of("orders")
    with pytest.raises(Exception, match="topic_unknown"):
        engine.append(message(topic="other"))
    with pytest.raises(Exception, match="queue_id_illegal"):
        engine.append(message(queue_id=8))
    with pytest.raises(Exception, match="topic_unknown"):
        engine.prepare("t", message(topic="other"))
    engine.append(message(queue_id=7))
    assert list(engine.core.names.queues.values()) == [NamedQueue(0, "orders", 7, 1)]


# What is undecided.


def test_a_topic_with_undecided_messages_is_deleted_by_force_only() -> None:
    engine = engine_of("orders")
    held = engine.prepare("t", message(), message(queue_id=1))
    parked = engine.prepare("u")
    engine.park(parked.half_offset)
    decision = remove(engine)
    assert code(decision) == "topic_undecided"
    assert decision.refused is not None
    assert decision.refused.fields["undecided"] == 3
    assert decision.refused.fields["half_offsets"] == [held.half_offset, 1, parked.half_offset]
    assert code(remove(engine, is_forced=True, reason="expired")) == "topic_undecided"
    assert engine.core.catalog.topic("orders") is not None
    forced = remove(engine, is_forced=True)
    assert forced.reply == Cataloged(is_changed=True, undecided=3)
    assert engine.core.catalog.topic("orders") is None


def test_one_that_is_not_used_any_more_must_have_nothing_that_waits() -> None:
    engine = engine_of("orders")
    engine.append(message(deliver_at_ms=engine.clock.now_ms() + HOUR_MS))
    assert code(remove(engine, reason="expired")) == "topic_undecided"
    assert remove(engine).reply == Cataloged(is_changed=True, waiting=1)
    assert remove(engine_of("orders"), reason="expired").refused is None


def deleted_with_a_half(*more: str) -> tuple[MemoryEngine, int]:
    """A half message whose topic was deleted and made again."""
    engine = engine_of("orders", *more)
    messages = (message(b"old"), *(message(topic=name) for name in more))
    held = engine.prepare("t", *messages)
    remove(engine, is_forced=True)
    engine.submit(PutTopic(topic=Topic(name="orders")))
    return engine, held.half_offset


def commit(half_offset: int) -> End:
    return End(half_offset=half_offset, resolution=Resolution.COMMIT, by="producer")


@pytest.mark.parametrize("more", [(), ("other",)])
def test_a_later_commit_parks_it_as_topic_deleted(more: tuple[str, ...]) -> None:
    engine, row = deleted_with_a_half(*more)
    decision = engine.submit(commit(row))
    assert code(decision) == "topic_deleted"
    assert decision.records == (Parked(row, "topic_deleted"),)
    assert decision.refused is not None
    assert decision.refused.fields["topic"] == "orders"
    assert engine.state(row) is State.PARKED
    # Once is enough, and nothing brings it back.
    again = engine.submit(commit(row))
    assert (code(again), again.records) == ("topic_deleted", ())
    assert code(engine.submit(Resume(half_offset=row, by="admin"))) == "topic_deleted"
    assert bodies(engine) == []
    assert [one.body for one in engine.pull("other")] == []
    engine.rollback(row)
    assert engine.state(row) is State.ROLLED_BACK
    assert engine.append(message(b"new")).queue_offsets == [0]
    assert bodies(engine.restart()) == [b"new"]


def test_a_rollback_ends_it_as_always() -> None:
    engine, row = deleted_with_a_half()
    engine.rollback(row)
    assert engine.state(row) is State.ROLLED_BACK


def test_other_transactions_are_committed_as_before() -> None:
    engine, _ = deleted_with_a_half()
    engine.commit(engine.prepare("u", message(b"new")).half_offset)
    engine.commit(engine.prepare("v", message(b"more"), message(b"most")).half_offset)
    assert bodies(engine) == [b"new", b"more", b"most"]
    parked = engine.prepare("w", message(b"parked")).half_offset
    engine.park(parked)
    engine.resume(parked)
    assert engine.state(parked) is State.PREPARED


def test_a_verdict_parks_it_and_many_verdicts_leave_it_alone() -> None:
    engine, row = deleted_with_a_half()
    other = engine.prepare("u", message(b"new")).half_offset
    many = engine.submit(
        Verdicts(
            half_offsets=[row, other],
            commits=[1, 1],
            states=[State.PREPARED] * 2,
            checks_sent=[0] * 2,
        )
    )
    assert many.reply is not None
    assert engine.state(row) is State.PREPARED
    assert engine.state(other) is State.COMMITTED
    verdict = Verdict(half_offset=row, kind=VerdictKind.COMMIT, state=State.PREPARED, checks_sent=0)
    decision = engine.submit(verdict)
    assert outcome_of(decision).value == "parked"
    assert engine.state(row) is State.PARKED


def test_a_batch_into_a_topic_that_was_deleted_meanwhile_is_refused_whole() -> None:
    engine = engine_of("orders", "other")
    engine.prepare("a", message(b"row"), number=0, bulk=True)
    engine.prepare("b", message(b"row", topic="other"), number=0, bulk=True)
    remove(engine, is_forced=True)
    batch = DecideBatch(
        app_id="app",
        query_id="query",
        batch_id=0,
        attempts=tuple(AttemptClaim(transaction_id=one, last_number=0, rows=1) for one in "ab"),
        by="driver",
    )
    decision = engine.submit(batch)
    assert (code(decision), decision.records) == ("topic_deleted", ())
    assert engine.pull("other") == []
    # Written again, into the topic that is there now, it is decided.
    engine.submit(PutTopic(topic=Topic(name="orders")))
    engine.prepare("c", message(b"again"), number=0, bulk=True)
    attempts = tuple(AttemptClaim(transaction_id=one, last_number=0, rows=1) for one in "cb")
    again = DecideBatch(app_id="app", query_id="query", batch_id=0, attempts=attempts, by="driver")
    assert engine.submit(again).refused is None
    assert bodies(engine) == [b"again"]


# What waits for its time.


def test_delayed_messages_of_a_deleted_topic_are_dropped_when_their_time_comes() -> None:
    engine = engine_of("orders", "other")
    at_ms = engine.clock.now_ms() + HOUR_MS
    engine.append(message(b"old", deliver_at_ms=at_ms))
    engine.append(message(b"kept", topic="other", deliver_at_ms=at_ms))
    held = engine.prepare("t", message(b"half", deliver_after_ms=HOUR_MS))
    engine.commit(held.half_offset)
    remove(engine)
    engine.submit(PutTopic(topic=Topic(name="orders")))
    engine.clock.advance(ms=HOUR_MS)
    assert engine.release_due() == [0, 1, 2]
    dropped, released = engine.frames[-1].records
    assert isinstance(dropped, Released)
    assert isinstance(released, Released)
    assert (dropped.rows, dropped.queue_offsets) == ([0, 2], [NOWHERE, NOWHERE])
    assert released.rows == [1]
    assert engine.release_due() == []
    assert bodies(engine) == []
    assert [one.body for one in engine.pull("other")] == [b"kept"]
    assert bodies(engine.restart()) == []


def test_when_none_is_left_only_the_drop_is_written() -> None:
    engine = engine_of("orders")
    engine.append(message(deliver_at_ms=engine.clock.now_ms() + HOUR_MS))
    remove(engine)
    engine.clock.advance(ms=HOUR_MS)
    engine.release_due()
    assert [type(record) for record in engine.frames[-1].records] == [Released]
    assert engine.core.row(0).is_needed is False


def test_retention_does_not_carry_what_will_never_be_visible() -> None:
    engine = engine_of("orders", "other")
    at_ms = engine.clock.now_ms() + HOUR_MS
    engine.append(message(deliver_at_ms=at_ms), message(topic="other", deliver_at_ms=at_ms))
    engine.append(message(deliver_at_ms=at_ms))
    remove(engine)
    both = engine.submit(Carry(first=0))
    assert [type(record) for record in both.records] == [Released, Moved]
    assert both.copies == (1,)
    alone = engine.submit(Carry(first=2))
    assert [type(record) for record in alone.records] == [Released]
    assert [engine.core.row(row).is_needed for row in range(3)] == [False, True, False]


def test_what_damage_ended_in_a_deleted_topic_gets_no_place() -> None:
    engine = engine_of("orders")
    engine.append(message(deliver_at_ms=engine.clock.now_ms() + HOUR_MS))
    remove(engine)
    (record,) = engine.submit(Abandon(half_offset=0, by="repair")).records
    assert isinstance(record, Released)
    assert record.queue_offsets == [NOWHERE]


# Records.


def test_records_applied_again_on_a_later_state_change_nothing() -> None:
    """A store whose projections are lost replays its log on top of its checkpoint."""
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


def test_of_very_many_deleted_names_the_oldest_are_forgotten() -> None:
    catalog, names = Catalog(), Names()
    for number in range(REMOVED_MAX + 5):
        catalog.apply(TopicRemoved(f"t{number}", number, [], "deleted", "admin"), number)
    assert len(catalog.removed) == REMOVED_MAX
    assert "t4" not in catalog.removed
    for number in range(DELETED_MAX + 5):
        names.apply(NamedQueue(number, f"t{number}", 0))
        names.remove(number, is_held=True)
        names.remove(number, is_held=True)
    assert len(names.deleted) == DELETED_MAX
    assert names.named(4) == NamedQueue(4, "", 0)
    assert names.named(5).topic == "t5"


def test_numbers_that_damage_took_are_not_used_again() -> None:
    """The record that made a topic may be lost, while that of its queue is not."""
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
