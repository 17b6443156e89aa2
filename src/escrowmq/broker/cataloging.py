"""Effects of a durable change to topics and groups on the rest of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.event_log import event_log
from escrowmq.store.meta import GROUPS, SETTINGS, TOPICS
from escrowmq.transaction.records import (
    NOWHERE,
    GroupPut,
    GroupRemoved,
    Released,
    SettingPut,
    TopicPut,
    TopicRemoved,
)

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.model.catalog import Group
    from escrowmq.transaction.commands import Decision
    from escrowmq.transaction.records import Record

log = event_log(__name__)

_TOLD = frozenset((TopicPut, TopicRemoved, GroupPut, GroupRemoved, SettingPut, Released))


class Cataloging:
    """Updates every part of the broker that remembers a topic or a group."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def durable(self, decisions: list[Decision]) -> None:
        """Act on decisions that are durable."""
        for decision in decisions:
            for record in decision.records:
                if type(record) in _TOLD:
                    self._tell(record)

    def _tell(self, record: Record) -> None:
        broker, meta = self._broker, self._broker.meta
        match record:
            case TopicPut():
                meta.changed(TOPICS, record.topic.name)
            case TopicRemoved():
                self._removed(record)
            case GroupPut():
                self._put_group(record.group)
            case GroupRemoved():
                meta.forget_group(record.name)
                broker.groups.paused.pop(record.name, None)
                broker.pulling.resumed(record.name)
                broker.reach.forget(group=record.name)
                broker.counts.forget_group(record.name)
                log.info(
                    "group_removed",
                    extra={"group": record.name, "reason": record.reason, "by": record.by},
                )
            case SettingPut():
                meta.changed(SETTINGS, record.setting.name)
            case Released() if NOWHERE in record.queue_offsets:
                count = record.queue_offsets.count(NOWHERE)
                log.warning("delayed_messages_dropped", extra={"messages": count})

    def _put_group(self, group: Group) -> None:
        broker, name = self._broker, group.name
        broker.meta.changed(GROUPS, name)
        before = broker.groups.paused.get(name)
        broker.groups.note(group)
        if before is not None and group.pause is None:
            broker.pulling.resumed(name)
            log.info("group_resumed", extra={"group": name, "paused_by": before.by})
        elif before is None and group.pause is not None:
            log.info("group_paused", extra={"group": name, "by": group.pause.by})

    def _removed(self, record: TopicRemoved) -> None:
        broker, name = self._broker, record.name
        # Delete its offsets first: consumers of a later topic of this name must not resume there.
        broker.meta.forget_topic(name)
        broker.reach.forget(topic=name)
        broker.counts.forget(name, record.queues)
        broker.pulling.forget(name)
        log.info(
            "topic_removed",
            extra={
                "topic": name,
                "incarnation": record.incarnation,
                "queues": len(record.queues),
                "queues_held": len(record.held),
                "reason": record.reason,
                "by": record.by,
            },
        )
