"""The table of native requests: what each of them needs.

A function gets the call and the asker, and returns the needs. The call decodes its rows once, for
this table and for the handler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from escrowmq.access.needs import Need, Needs, OneOf
from escrowmq.broker.access.common_needs import (
    Asker,
    decides,
    holds,
    need,
    on_cluster,
    on_group,
    on_topic,
    refuse_unless_super,
    united,
    uses_topic,
)
from escrowmq.model.sink_attempt import GROUP_PREFIX
from escrowmq.model.users import Action, ResourceKind, UserKind
from escrowmq.protocol.native import previews, rows
from escrowmq.protocol.native.requests import NativeCode

if TYPE_CHECKING:
    from escrowmq.broker.native.calls import Call

NativeNeeds = Callable[["Call[Any]", Asker], Needs]


def _always(needs: Needs) -> NativeNeeds:
    return lambda _call, _asker: needs


def _of_topic(action: Action) -> NativeNeeds:
    return lambda call, _asker: on_topic(action, call.header.topic)


def _hold(call: Call[Any], _asker: Asker) -> Needs:
    # Decodes the rows in the form that the handler uses, too.
    if call.header.is_bulk:
        topics = call.columns(rows.SentRow).distinct("topic")[0]
    else:
        topics = list({row.topic for row in call.rows(rows.SentRow)})
    return holds(call.header.producer_group, *topics)


def _hold_many(call: Call[Any], _asker: Asker) -> Needs:
    topics = {row.topic for row in call.rows(rows.SentInRow)}
    return holds(call.header.producer_group, *topics)


def _send_many(call: Call[Any], _asker: Asker) -> Needs:
    topics = {row.topic for row in call.rows(rows.SentRow)}
    return united(*(on_topic(Action.PUB, topic) for topic in topics))


def _decide_many(call: Call[Any], asker: Asker) -> Needs:
    return united(*(decides(asker, row.half_offset) for row in call.rows(rows.DecisionRow)))


def _decide_batch(call: Call[Any], asker: Asker) -> Needs:
    # The batch of an app counts as written or not, so an app id has an owner.
    found = [on_group(Action.PUB, f"{GROUP_PREFIX}{call.header.app_id}")]
    for row in call.rows(rows.AttemptRow):
        half_offset = asker.facts.attempt(row.transaction_id)
        if half_offset is not None:
            found.append(decides(asker, half_offset))
    return united(*found)


def _by_hand(call: Call[Any], asker: Asker) -> Needs:
    header = call.header
    half_offset = asker.facts.transaction(header.half_offset, header.transaction_id)
    origin = None if half_offset is None else asker.facts.origin_of(half_offset)
    return on_group(Action.SETTLE, "" if origin is None else origin.group)


def _life_line(call: Call[Any], asker: Asker) -> Needs:
    header = call.header
    half_offset = asker.facts.transaction(header.half_offset, header.transaction_id)
    return () if half_offset is None else decides(asker, half_offset, by_others=True)


def _previews(call: Call[Any], asker: Asker) -> Needs:
    asked = call.rows(previews.SoughtHalfRow)
    return united(*(decides(asker, row.half_offset, by_others=True) for row in asked))


def _transactions(call: Call[Any], _asker: Asker) -> Needs:
    return _sender_or(Action.SETTLE, call.header.producer_group)


def _attempts(call: Call[Any], _asker: Asker) -> Needs:
    return _sender_or(Action.SETTLE, call.header.producer_group)


def _sender_or(action: Action, group: str) -> Needs:
    kind = ResourceKind.GROUP
    return (OneOf((Need(Action.PUB, kind, group), Need(action, kind, group))),)


def _plan(call: Call[Any], _asker: Asker) -> Needs:
    # Ranges of rows tell no name, but how many undecided transactions there are.
    return on_group(Action.SETTLE, "") if call.header.what == "transactions" else _AUDIT


def _queues(call: Call[Any], _asker: Asker) -> Needs:
    topics = [topic for topic in call.header.topic.split(",") if topic]
    if not topics:
        return need(Action.LIST, ResourceKind.TOPIC)
    return united(*(uses_topic(topic) for topic in topics))


def _offsets(call: Call[Any], _asker: Asker) -> Needs:
    group = call.header.group
    if not group:
        return need(Action.LIST, ResourceKind.GROUP)
    kind = ResourceKind.GROUP
    return (OneOf((Need(Action.SUB, kind, group), Need(Action.GET, kind, group))),)


def _find(call: Call[Any], _asker: Asker) -> Needs:
    header = call.header
    if header.message_id or header.with_undecided or not header.topic:
        # Any message may be found, also a half message of another user.
        return _AUDIT
    return on_topic(Action.SUB, header.topic)


def _put_user(call: Call[Any], asker: Asker) -> Needs:
    header = call.header
    known = asker.facts.store.catalog.users.get(header.user)
    is_super = known is not None and known.user.kind is UserKind.SUPER
    if is_super or header.kind.strip().casefold() == UserKind.SUPER:
        refuse_unless_super(asker)
    return on_cluster(Action.CREATE if known is None else Action.UPDATE)


def _remove_user(call: Call[Any], asker: Asker) -> Needs:
    known = asker.facts.store.catalog.users.get(call.header.user)
    if known is not None and known.user.kind is UserKind.SUPER:
        refuse_unless_super(asker)
    return on_cluster(Action.DELETE)


def _users(call: Call[Any], asker: Asker) -> Needs:
    return () if call.header.user == asker.user else on_cluster(Action.LIST)


def _explain(call: Call[Any], asker: Asker) -> Needs:
    return () if call.header.user == asker.user else on_cluster(Action.GET)


_AUDIT = on_cluster(Action.AUDIT)
_EVIDENCE = _always(_AUDIT)
_PIPELINE = _always(need(Action.UPDATE, ResourceKind.PIPELINE))

CODE = NativeCode
NATIVE_NEEDS: Mapping[int, NativeNeeds] = {
    # Facts. Clients ask for the status when they start.
    CODE.STATUS: _always(()),
    CODE.PLAN_RANGES: _plan,
    CODE.LIST_TRANSACTIONS: _transactions,
    CODE.LIST_HALVES: _EVIDENCE,
    CODE.LIST_OPS: _EVIDENCE,
    CODE.LIST_CHECKS: _EVIDENCE,
    CODE.LIST_QUEUES: _queues,
    CODE.READ_MESSAGES: _of_topic(Action.SUB),
    CODE.AWAIT_DUE: _PIPELINE,
    CODE.LIST_BATCHES: _EVIDENCE,
    CODE.LIST_EVENTS: _EVIDENCE,
    CODE.READ_STORED: _of_topic(Action.SUB),
    CODE.FIND_ATTEMPTS: _attempts,
    CODE.READ_LOG: _EVIDENCE,
    CODE.LIST_NAMES: _EVIDENCE,
    CODE.PREVIEW_HALVES: _previews,
    CODE.LIST_COMPARISON: _always(need(Action.GET, ResourceKind.PIPELINE)),
    CODE.LIST_STATE_STORE: _EVIDENCE,
    # Writing.
    CODE.HOLD_HALVES: _hold,
    CODE.HOLD_MANY: _hold_many,
    CODE.SEND_MANY: _send_many,
    CODE.DECIDE_MANY: _decide_many,
    CODE.DECIDE_BATCH: _decide_batch,
    CODE.OBEY_VERDICTS: _always(on_group(Action.SETTLE, "")),
    CODE.REPORT_LEDGERS: _PIPELINE,
    CODE.PIPELINE_HEARTBEAT: _PIPELINE,
    CODE.REPORT_COMPARISON: _PIPELINE,
    # Administration.
    CODE.LIST_TOPICS: _always(need(Action.LIST, ResourceKind.TOPIC)),
    CODE.LIST_GROUPS: _always(need(Action.LIST, ResourceKind.GROUP)),
    CODE.LIST_OFFSETS: _offsets,
    CODE.FIND_MESSAGES: _find,
    CODE.LIFE_LINE: _life_line,
    CODE.DECIDE_BY_HAND: _by_hand,
    CODE.RESUME: _by_hand,
    CODE.COPY_META: _EVIDENCE,
    CODE.DELETE_TOPIC: _of_topic(Action.DELETE),
    CODE.LIST_LEDGERS: _always(need(Action.LIST, ResourceKind.LEDGER)),
    CODE.CONFIRM_CLOCK: _always(on_cluster(Action.UPDATE)),
    CODE.PAUSE_GROUP: lambda call, _asker: on_group(Action.UPDATE, call.header.group),
    CODE.LIST_PAUSED: _always(need(Action.LIST, ResourceKind.GROUP)),
    # Users.
    CODE.USER_PUT: _put_user,
    CODE.USER_REMOVE: _remove_user,
    CODE.USER_LIST: _users,
    CODE.ACL_EXPLAIN: _explain,
}
