"""Effects of a durable change to topics and groups on the rest of the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never, get_args

from escrowmq.model.event_log import event_log
from escrowmq.store.meta.meta import Meta
from escrowmq.transaction import records as kinds
from escrowmq.transaction.pop_records import PopAcknowledged, PopPlaced
from escrowmq.transaction.recall_records import Recalled
from escrowmq.transaction.records import NOWHERE, Record
from escrowmq.transaction.user_records import AccessWasOn, UserPut, UserRecord, UserRemoved

if TYPE_CHECKING:
    from escrowmq.broker.pop.service import PopService
    from escrowmq.broker.rocketmq.pulling import Pulling
    from escrowmq.broker.state.counting import BrokerCounts
    from escrowmq.broker.state.groups import Groups
    from escrowmq.broker.state.reach import Reach
    from escrowmq.model.catalog import Group
    from escrowmq.transaction.commands import Decision

log = event_log(__name__)

_Untold = (
    kinds.MessageRecord
    | kinds.Op
    | kinds.CheckRecord
    | kinds.NameRecord
    | kinds.HistoryRecord
    | Recalled
)
_UNTOLD = frozenset(get_args(_Untold))


@dataclass(frozen=True, slots=True)
class Cataloging:
    """Updates every part of the broker that remembers a topic or a group."""

    meta: Meta
    groups: Groups
    pulling: Pulling
    popping: PopService
    reach: Reach
    counts: BrokerCounts

    def durable(self, decisions: list[Decision]) -> None:
        """Act on decisions that are durable."""
        for decision in decisions:
            for record in decision.records:
                if type(record) not in _UNTOLD:
                    self._tell(record)

    def _tell(self, record: Record) -> None:  # noqa: C901 - one case per record
        meta = self.meta
        match record:
            case kinds.TopicPut():
                meta.changed("topics", record.topic.name)
            case kinds.TopicRemoved():
                self._removed(record)
            case kinds.GroupPut():
                self._put_group(record.group)
            case kinds.GroupRemoved():
                meta.forget_group(record.name)
                self.groups.paused.pop(record.name, None)
                self.pulling.resumed(record.name)
                self.popping.forget_group(record.name)
                self.reach.forget(group=record.name)
                self.counts.forget_group(record.name)
                log.info(
                    "group_removed",
                    extra={"group": record.name, "reason": record.reason, "by": record.by},
                )
            case kinds.SettingPut():
                meta.changed("settings", record.setting.name)
            case UserPut() | UserRemoved() | AccessWasOn():
                _log_access(record)
            case PopAcknowledged():
                self.popping.places.durable(record, is_reset=False)
            case PopPlaced():
                self.popping.places.durable(record, is_reset=True)
            case kinds.Released():
                count = record.queue_offsets.count(NOWHERE)
                if count:
                    log.warning("delayed_messages_dropped", extra={"messages": count})
            case _ if isinstance(record, kinds.CatalogMarked | _Untold):
                pass
            case _:
                assert_never(record)

    def _put_group(self, group: Group) -> None:
        name = group.name
        self.meta.changed("groups", name)
        before = self.groups.paused.get(name)
        self.groups.note(group)
        if before is not None and group.pause is None:
            self.pulling.resumed(name)
            self.popping.resumed(name)
            log.info("group_resumed", extra={"group": name, "paused_by": before.by})
        elif before is None and group.pause is not None:
            log.info("group_paused", extra={"group": name, "by": group.pause.by})

    def _removed(self, record: kinds.TopicRemoved) -> None:
        name = record.name
        # Delete its offsets first: consumers of a later topic of this name must not resume there.
        self.meta.forget_topic(name)
        self.reach.forget(topic=name)
        self.counts.forget(name, record.queues)
        self.pulling.forget(name)
        self.popping.forget_topic(name, record.queues)
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


def _log_access(record: UserRecord) -> None:
    match record:
        case UserPut(user=user):
            log.info(
                "user_put",
                extra={
                    "user": user.name,
                    "kind": user.kind.value,
                    "enabled": user.is_enabled,
                    "roles": [role.value for role in user.roles],
                    "policies": len(user.policies),
                    "secrets": len(user.secrets),
                    "by": record.by,
                },
            )
        case UserRemoved():
            log.info("user_removed", extra={"user": record.name, "by": record.by})
        case AccessWasOn():
            pass
        case _:
            assert_never(record)
