"""Our own requests for operators and their tools: lists, and changes that are made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from escrowmq.broker.clients import CONSUMER, PRODUCER
from escrowmq.broker.own_calls import Call, key_cursor, keys_after, own_handlers, own_questions
from escrowmq.broker.own_transactions import BY_HAND, named_half
from escrowmq.broker.own_writing import resolution_of
from escrowmq.model.clock import GAP_MS
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.limits import SHOWN_CHARS_MAX
from escrowmq.protocol.own import OwnCode
from escrowmq.transaction.commands import Cataloged, Decision, End, Resume, Settled
from escrowmq.transaction.pause_command import PauseGroup
from escrowmq.transaction.states import Resolution

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.broker.clients import Client
    from escrowmq.broker.connection import Connection
    from escrowmq.broker.requests import Handlers, Request
    from escrowmq.protocol.own_hand_headers import (
        ByHandHeader,
        ConfirmClockHeader,
        DeleteTopicHeader,
        PauseGroupHeader,
        SettleHeader,
    )
    from escrowmq.protocol.own_headers import OwnHeader, PagedHeader, TopicFilterHeader

GroupKey = tuple[str, str, str]
"""Group, role and client id; the id is empty for a group with no member online."""


class OwnAdmin:
    """Handles admin requests."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""
        return {
            **own_questions(
                self._broker,
                {
                    OwnCode.LIST_TOPICS: self.topics,
                    OwnCode.LIST_GROUPS: self.groups,
                    OwnCode.LIST_OFFSETS: self.offsets,
                    OwnCode.LIST_PAUSED: self.paused,
                    OwnCode.COPY_META: self.copy_meta,
                },
            ),
            **own_handlers(
                self._broker,
                {
                    OwnCode.SETTLE: self.settle,
                    OwnCode.RESUME: self.resume,
                    OwnCode.DELETE_TOPIC: self.delete_topic,
                    OwnCode.CONFIRM_CLOCK: self.confirm_clock,
                    OwnCode.PAUSE_GROUP: self.pause,
                },
            ),
        }

    def topics(self, call: Call[PagedHeader]) -> None:
        """List all topics."""
        topics = {topic.name: topic for topic in self._broker.topics.all()}
        names, cursor = key_cursor(keys_after(topics, call.header.cursor, str), call.limit())
        mine = self._broker.catalog.topics
        call.answer_rows(
            (
                (
                    name,
                    topics[name].read_queue_count,
                    topics[name].write_queue_count,
                    topics[name].perm,
                    topics[name].message_type.value,
                    name not in mine,
                    topics[name].created_at_ms,
                )
                for name in names
            ),
            cursor=cursor,
        )

    def groups(self, call: Call[PagedHeader]) -> None:
        """List all groups with their online members."""
        clients = self._broker.clients
        members: dict[GroupKey, Client[Connection] | None] = {}
        for name in clients.producer_groups():
            for client in clients.producers(name):
                members[name, PRODUCER, client.client_id] = client
        for name in {*self._broker.catalog.groups, *clients.consumer_groups()}:
            group = clients.consumers(name)
            if group is None:
                members[name, CONSUMER, ""] = None
            else:
                members |= {
                    (name, CONSUMER, client.client_id): client for client in group.members.values()
                }
        keys, cursor = key_cursor(
            keys_after(members, call.header.cursor, tuple[str, str, str]), call.limit()
        )
        ago_ms = self._broker.clock.ago_ms
        call.answer_rows((_member(key, members[key], ago_ms) for key in keys), cursor=cursor)

    def offsets(self, call: Call[TopicFilterHeader]) -> None:
        """List how far consumer groups have read each queue."""
        header, broker = call.header, self._broker
        known = broker.meta.offsets
        wanted = (
            key for key in known if header.group in ("", key[0]) and header.topic in ("", key[1])
        )
        keys, cursor = key_cursor(
            keys_after(wanted, header.cursor, tuple[str, str, int]), call.limit()
        )

        def told(key: tuple[str, str, int]) -> tuple[object, ...]:
            queue = broker.reader.queue(key[1], key[2])
            end = queue.end if queue is not None else 0
            return (*key, known[key], end, max(end - known[key], 0))

        call.answer_rows(map(told, keys), cursor=cursor)

    def paused(self, call: Call[PagedHeader]) -> None:
        """List the paused consumer groups."""
        paused = self._broker.groups.paused
        names, cursor = key_cursor(keys_after(paused, call.header.cursor, str), call.limit())
        call.answer_rows(
            ((name, paused[name].by, paused[name].at_ms, paused[name].reason) for name in names),
            cursor=cursor,
        )

    def copy_meta(self, call: Call[OwnHeader]) -> None:
        """Copy ``meta.db``, for a backup."""
        writing, request = self._broker.meta_writing, call.request

        async def copy() -> None:
            path, log_end = await writing.copy()
            path = path.absolute()
            request.connection.settle()
            call.answer(
                data_dir=str(path.parent),
                path=str(path),
                log_end=log_end,
                free_bytes_min=self._broker.store.config.free_bytes_min,
            )

        def failed(error: BaseException) -> None:
            request.connection.settle()
            request.decline(error)

        request.connection.owe()
        writing.soon(copy(), lambda: None, failed)

    # Changes by hand.

    def delete_topic(self, call: Call[DeleteTopicHeader]) -> None:
        """Delete a topic; with force, even if it has undecided messages."""
        header = call.header
        command = self._broker.topics.remove(header.topic, by=header.by, is_forced=header.is_forced)

        def removed(decision: Decision) -> None:
            reply = decision.reply
            assert isinstance(reply, Cataloged)
            call.answer(
                is_deleted=reply.is_changed, undecided=reply.undecided, waiting=reply.waiting
            )

        self._broker.submit(call.request, command, removed)

    def pause(self, call: Call[PauseGroupHeader]) -> None:
        """Pause or resume a consumer group."""
        header = call.header
        command = PauseGroup(
            name=header.group, is_paused=header.is_paused, by=header.by, reason=header.reason
        )

        def paused(decision: Decision) -> None:
            reply = decision.reply
            assert isinstance(reply, Cataloged)
            online = self._broker.clients.consumers(header.group)
            members = 0 if online is None else len(online.members)
            call.answer(is_changed=reply.is_changed, consumers_online=members)

        self._broker.submit(call.request, command, paused)

    def settle(self, call: Call[SettleHeader]) -> None:
        """Settle a transaction by hand; a contrary decision of its producer is refused later."""
        header = call.header
        resolution = resolution_of(header.resolution)
        if resolution is Resolution.UNKNOWN or not header.reason:
            raise RequestRefused("settlement_incomplete", "say commit or rollback, and why")
        half = named_half(self._broker, header.half_offset, header.transaction_id)
        command = End(
            half_offset=half.half_offset,
            resolution=resolution,
            by=f"{header.by}{BY_HAND}{header.reason[:SHOWN_CHARS_MAX]}",
            epoch=header.epoch,
            seen_to=header.log_end,
            is_forced=header.is_forced,
        )

        def settled(decision: Decision) -> None:
            reply = decision.reply
            assert isinstance(reply, Settled)
            call.answer(
                decided=reply.state.label,
                decided_by=reply.by,
                decided_at_ms=reply.at_ms,
                is_repeated=reply.repeated,
            )

        def refused(request: Request, why: RequestRefused) -> None:
            if "at_ms" in why.fields:
                self._broker.contradictions.note_refused(command, why)
            request.decline(why)

        self._broker.submit(call.request, command, settled, refused)

    def resume(self, call: Call[ByHandHeader]) -> None:
        """Resume the back-checks of a parked transaction."""
        header = call.header
        half = named_half(self._broker, header.half_offset, header.transaction_id)
        command = Resume(half_offset=half.half_offset, by=header.by)
        self._broker.submit(call.request, command, lambda _: call.answer())

    def confirm_clock(self, call: Call[ConfirmClockHeader]) -> None:
        """Record that a person vouches for the wall clock."""
        header, clock = call.header, self._broker.clock
        command = clock.confirmation(header.by)
        gap_ms = clock.time.gap_ms
        if command is None:
            raise RequestRefused(
                "clock_not_doubted", "wall time and store time agree", gap_ms=gap_ms
            )
        if abs(gap_ms - header.gap_ms) >= GAP_MS:
            raise RequestRefused(
                "clock_gap_changed",
                "the clock was set meanwhile; look again",
                gap_ms=gap_ms,
                seen_gap_ms=header.gap_ms,
            )

        def confirmed(decision: Decision) -> None:
            record = clock.moved(decision)
            call.answer(
                from_ms=record.from_ms,
                to_ms=record.to_ms,
                deletion_waits_ms=clock.deletion_waits_ms,
            )

        self._broker.submit(call.request, command, confirmed)


def _member(
    key: GroupKey, client: Client[Connection] | None, at_ms: Callable[[int], int]
) -> tuple[object, ...]:
    group, role, _ = key
    if client is None:
        return group, role, None, None, None, None
    return (
        group,
        role,
        client.client_id,
        client.connection.address,
        client.language,
        at_ms(client.heard_at_ms),
    )
