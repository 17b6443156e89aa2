"""Topics of the owner, of the system, and those that a message makes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from escrowmq.broker.config import TopicsConfig
from escrowmq.broker.state.create_first import CreateFirst
from escrowmq.broker.state.topics import (
    Topics,
    dlq_topic,
    retry_topic,
)
from escrowmq.model.catalog import READ, MessageType, Topic
from escrowmq.model.errors import RequestRefused
from escrowmq.model.topic_names import DEFAULT_TOPIC
from escrowmq.protocol.message.message_views import PARKED_TOPIC, SCHEDULE_TOPIC, SYSTEM_TOPICS
from escrowmq.testing import MemoryEngine
from escrowmq.testing.calls import accepted
from escrowmq.transaction.commands import MarkCatalog

T0 = 1_700_000_000_000


class Made(Topics):
    """Topics whose commands are executed at once."""

    def __init__(self, engine: MemoryEngine, config: TopicsConfig) -> None:
        super().__init__(engine.core.catalog, config)
        self.engine = engine

    def make(self, topic: Topic) -> Topic:
        accepted(self.engine.submit(self.put(topic)))
        return topic

    def delete(self, name: str) -> None:
        accepted(self.engine.submit(self.remove(name, by="owner")))

    def after(self, ask: Callable[[], Topic]) -> Topic:
        """Return the answer after the command that it needs, as the broker does."""
        try:
            return ask()
        except CreateFirst as wanted:
            accepted(self.engine.submit(wanted.command))
            return ask()


@pytest.fixture
def engine() -> MemoryEngine:
    engine = MemoryEngine()
    engine.submit(MarkCatalog(mark="kept"))
    return engine


@pytest.fixture
def topics(engine: MemoryEngine) -> Made:
    return Made(engine, TopicsConfig())


def send(topics: Made, name: str, queue_id: int = 0, *, queue_count: int = 4) -> Topic:
    return topics.after(
        lambda: topics.to_send(
            name, queue_id, template=DEFAULT_TOPIC, queue_count=queue_count, now_ms=T0
        )
    )


@pytest.mark.parametrize(("asked", "made"), [(4, 4), (100, 8), (0, 1), (-3, 1)])
def test_sending_makes_a_topic_with_as_many_queues_as_client_and_template_allow(
    topics: Made, asked: int, made: int
) -> None:
    topic = send(topics, "orders", queue_count=asked)
    assert (topic.read_queue_count, topic.write_queue_count, topic.perm) == (made, made, 6)
    assert topic.created_at_ms == T0
    assert topics.get("orders") == topic
    assert send(topics, "orders", queue_count=99) == topic


def test_a_made_topic_is_there_after_a_restart(topics: Made) -> None:
    send(topics, "orders")
    again = topics.engine.restart()
    assert Topics(again.core.catalog, TopicsConfig()).get("orders") is not None


def test_without_auto_create_an_unknown_topic_is_refused(engine: MemoryEngine) -> None:
    topics = Made(engine, TopicsConfig(auto_create=False))
    with pytest.raises(RequestRefused, match="topic_unknown"):
        send(topics, "orders")
    assert topics.get(DEFAULT_TOPIC) is None


def test_only_a_topic_that_may_be_inherited_is_a_template(topics: Made) -> None:
    topics.make(Topic(name="plain"))
    for template in ("plain", "nowhere"):
        with pytest.raises(RequestRefused, match="topic_unknown"):
            topics.to_send("orders", 0, template=template, queue_count=4, now_ms=T0)


@pytest.mark.parametrize("name", sorted(SYSTEM_TOPICS))
def test_system_topics_refuse_messages_of_clients(topics: Made, name: str) -> None:
    assert topics.get(name) is not None
    with pytest.raises(RequestRefused, match="topic_of_system"):
        send(topics, name)


@pytest.mark.parametrize("name", ["", "a b", "x" * 128])
def test_a_name_that_is_not_allowed_makes_no_topic(topics: Made, name: str) -> None:
    with pytest.raises(RequestRefused, match="topic_illegal"):
        send(topics, name)
    with pytest.raises(RequestRefused, match="topic_illegal"):
        topics.put(Topic(name=name or "?"))


@pytest.mark.parametrize("name", ["x", "%a|b-C_9", "x" * 127])
def test_an_allowed_name_makes_a_topic(topics: Made, name: str) -> None:
    assert send(topics, name).name == name


def test_a_queue_beyond_the_last_is_refused(topics: Made) -> None:
    send(topics, "orders")
    with pytest.raises(RequestRefused, match="queue_id_illegal"):
        send(topics, "orders", 4)
    with pytest.raises(RequestRefused, match="queue_id_illegal"):
        topics.to_read("orders", 4)
    assert topics.to_read("orders", 3).name == "orders"


def test_an_owner_may_forbid_reading_and_writing(topics: Made) -> None:
    topics.make(Topic(name="shut", perm=0))
    topics.make(Topic(name="read-only", perm=READ))
    for name in ("shut", "read-only"):
        with pytest.raises(RequestRefused, match="topic_not_writable"):
            send(topics, name)
    with pytest.raises(RequestRefused, match="topic_not_readable"):
        topics.to_read("shut", 0)
    assert topics.to_read("read-only", 0).perm == READ
    with pytest.raises(RequestRefused, match="topic_unknown"):
        topics.to_read("nowhere", 0)


def test_the_systems_topics_cannot_be_changed_or_removed(topics: Made) -> None:
    for name in (PARKED_TOPIC, DEFAULT_TOPIC):
        with pytest.raises(RequestRefused, match="topic_of_system"):
            topics.put(Topic(name=name))
        with pytest.raises(RequestRefused, match="topic_of_system"):
            topics.remove(name, by="owner")


def test_a_removed_topic_is_gone(topics: Made) -> None:
    send(topics, "orders")
    topics.delete("orders")
    topics.delete("orders")
    assert topics.get("orders") is None
    assert {topic.name for topic in topics.all()} == {*SYSTEM_TOPICS, DEFAULT_TOPIC}


def test_a_consumer_group_has_topics_of_one_queue(topics: Made) -> None:
    for name in (retry_topic("shop"), dlq_topic("shop")):
        topic = topics.after(partial(topics.for_group, name, 1, T0))
        assert (topic.read_queue_count, topic.write_queue_count, topic.perm) == (1, 1, 6)
        assert topics.for_group(name, 1, T0 + 1) == topic


# Types


def typed(engine: MemoryEngine, kind: MessageType, *, enforce: bool = True) -> tuple[Made, Topic]:
    topics = Made(engine, TopicsConfig(enforce_type=enforce))
    return topics, topics.make(Topic(name="orders", message_type=kind))


def test_a_message_of_another_type_is_refused_if_that_is_asked_for(engine: MemoryEngine) -> None:
    topics, topic = typed(engine, MessageType.TRANSACTION)
    topics.check_type(topic, MessageType.TRANSACTION)
    with pytest.raises(RequestRefused, match="message_type_wrong"):
        topics.check_type(topic, MessageType.NORMAL)
    retries = topics.after(lambda: topics.for_group(retry_topic("shop"), 1, T0))
    topics.check_type(retries, MessageType.DELAY)


@pytest.mark.parametrize("kind", [MessageType.MIXED, MessageType.UNSPECIFIED])
def test_a_mixed_topic_takes_every_type(engine: MemoryEngine, kind: MessageType) -> None:
    topics, topic = typed(engine, kind)
    for sent in MessageType:
        topics.check_type(topic, sent)


def test_types_are_only_shown_by_default(engine: MemoryEngine) -> None:
    topics, topic = typed(engine, MessageType.NORMAL, enforce=False)
    topics.check_type(topic, MessageType.TRANSACTION)


def test_delay_levels_that_make_no_sense_are_refused() -> None:
    with pytest.raises(RequestRefused) as refused:
        TopicsConfig(delay_levels="1s soon")
    assert refused.value.code == "bad_config"
    assert refused.value.fields == {"key": "topics.delay_levels", "value": "1s soon"}


def test_the_schedule_topic_has_a_queue_for_each_delay_level(engine: MemoryEngine) -> None:
    topics = Made(engine, TopicsConfig(delay_levels="1s 2s"))
    assert topics.named(SCHEDULE_TOPIC).read_queue_count == 2
