"""Topics: the owner's, the system's, and those that come to be by sending."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from escrowmq.broker.config import TopicsConfig
from escrowmq.broker.topics import (
    DEFAULT_TOPIC,
    READ,
    SCHEDULE_TOPIC,
    SYSTEM_TOPICS,
    Topics,
    dlq_topic,
    retry_topic,
)
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message_views import PARKED_TOPIC
from escrowmq.store.meta import MessageType, Meta, Topic

T0 = 1_700_000_000_000


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[Meta]:
    with closing(Meta(tmp_path / "meta.db")) as meta:
        yield meta


@pytest.fixture
def topics(meta: Meta) -> Topics:
    return Topics(meta, TopicsConfig())


def send(topics: Topics, name: str, queue_id: int = 0, *, queue_count: int = 4) -> Topic:
    return topics.to_send(
        name, queue_id, template=DEFAULT_TOPIC, queue_count=queue_count, now_ms=T0
    )


@pytest.mark.parametrize(("asked", "made"), [(4, 4), (100, 8), (0, 1), (-3, 1)])
def test_sending_makes_a_topic_with_as_many_queues_as_client_and_template_allow(
    topics: Topics, asked: int, made: int
) -> None:
    topic = send(topics, "orders", queue_count=asked)
    assert (topic.read_queue_count, topic.write_queue_count, topic.perm) == (made, made, 6)
    assert topic.created_at_ms == T0
    assert topics.get("orders") == topic
    assert send(topics, "orders", queue_count=99) == topic


def test_a_made_topic_is_there_after_a_restart(tmp_path: Path) -> None:
    with closing(Meta(tmp_path / "meta.db")) as meta:
        send(Topics(meta, TopicsConfig()), "orders")
    with closing(Meta(tmp_path / "meta.db")) as meta:
        assert Topics(meta, TopicsConfig()).get("orders") is not None


def test_without_auto_create_an_unknown_topic_is_refused(meta: Meta) -> None:
    topics = Topics(meta, TopicsConfig(auto_create=False))
    with pytest.raises(RequestRefused, match="topic_unknown"):
        send(topics, "orders")
    assert topics.get(DEFAULT_TOPIC) is None


def test_only_a_topic_that_may_be_inherited_is_a_template(topics: Topics) -> None:
    topics.put(Topic(name="plain"))
    for template in ("plain", "nowhere"):
        with pytest.raises(RequestRefused, match="topic_unknown"):
            topics.to_send("orders", 0, template=template, queue_count=4, now_ms=T0)


@pytest.mark.parametrize("name", sorted(SYSTEM_TOPICS))
def test_nobody_sends_to_the_systems_topics(topics: Topics, name: str) -> None:
    assert topics.get(name) is not None
    with pytest.raises(RequestRefused, match="topic_of_system"):
        send(topics, name)


@pytest.mark.parametrize("name", ["", "a b", "x" * 128])
def test_a_name_that_is_not_allowed_makes_no_topic(topics: Topics, name: str) -> None:
    with pytest.raises(RequestRefused, match="topic_illegal"):
        send(topics, name)
    with pytest.raises(RequestRefused, match="topic_illegal"):
        topics.put(Topic(name=name or "?"))


def test_a_queue_beyond_the_last_is_refused(topics: Topics) -> None:
    send(topics, "orders")
    with pytest.raises(RequestRefused, match="queue_id_illegal"):
        send(topics, "orders", 4)
    with pytest.raises(RequestRefused, match="queue_id_illegal"):
        topics.to_read("orders", 4)
    assert topics.to_read("orders", 3).name == "orders"


def test_an_owner_may_forbid_reading_and_writing(topics: Topics) -> None:
    topics.put(Topic(name="shut", perm=0))
    topics.put(Topic(name="read-only", perm=READ))
    for name in ("shut", "read-only"):
        with pytest.raises(RequestRefused, match="topic_not_writable"):
            send(topics, name)
    with pytest.raises(RequestRefused, match="topic_not_readable"):
        topics.to_read("shut", 0)
    assert topics.to_read("read-only", 0).perm == READ
    with pytest.raises(RequestRefused, match="topic_unknown"):
        topics.to_read("nowhere", 0)


def test_the_systems_topics_cannot_be_changed_or_removed(topics: Topics) -> None:
    for name in (PARKED_TOPIC, DEFAULT_TOPIC):
        with pytest.raises(RequestRefused, match="topic_of_system"):
            topics.put(Topic(name=name))
        with pytest.raises(RequestRefused, match="topic_of_system"):
            topics.remove(name)


def test_a_removed_topic_is_gone(topics: Topics) -> None:
    send(topics, "orders")
    topics.remove("orders")
    topics.remove("orders")
    assert topics.get("orders") is None
    assert {topic.name for topic in topics.all()} == {*SYSTEM_TOPICS, DEFAULT_TOPIC}


def test_a_consumer_group_has_topics_of_one_queue(topics: Topics) -> None:
    for name in (retry_topic("shop"), dlq_topic("shop")):
        topic = topics.for_group(name, 1, T0)
        assert (topic.read_queue_count, topic.write_queue_count, topic.perm) == (1, 1, 6)
        assert topics.for_group(name, 1, T0 + 1) == topic


# Types


def typed(meta: Meta, kind: MessageType, *, enforce: bool = True) -> tuple[Topics, Topic]:
    topics = Topics(meta, TopicsConfig(enforce_type=enforce))
    return topics, topics.put(Topic(name="orders", message_type=kind))


def test_a_message_of_another_type_is_refused_if_that_is_asked_for(meta: Meta) -> None:
    topics, topic = typed(meta, MessageType.TRANSACTION)
    topics.check_type(topic, MessageType.TRANSACTION)
    with pytest.raises(RequestRefused, match="message_type_wrong"):
        topics.check_type(topic, MessageType.NORMAL)
    topics.check_type(topics.for_group(retry_topic("shop"), 1, T0), MessageType.DELAY)


@pytest.mark.parametrize("kind", [MessageType.MIXED, MessageType.UNSPECIFIED])
def test_a_mixed_topic_takes_every_type(meta: Meta, kind: MessageType) -> None:
    topics, topic = typed(meta, kind)
    for sent in MessageType:
        topics.check_type(topic, sent)


def test_types_are_only_shown_by_default(meta: Meta) -> None:
    topics, topic = typed(meta, MessageType.NORMAL, enforce=False)
    topics.check_type(topic, MessageType.TRANSACTION)


def test_delay_levels_that_make_no_sense_are_refused() -> None:
    with pytest.raises(RequestRefused) as refused:
        TopicsConfig(delay_levels="1s soon")
    assert refused.value.code == "bad_config"
    assert refused.value.fields == {"key": "topics.delay_levels", "value": "1s soon"}


def test_the_schedule_topic_has_a_queue_for_each_delay_level(meta: Meta) -> None:
    topics = Topics(meta, TopicsConfig(delay_levels="1s 2s"))
    assert topics.named(SCHEDULE_TOPIC).read_queue_count == 2
