"""Native requests for operators and their tools: lists, and changes that are made by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from escrowmq.broker.checks.contradictions import Contradictions
from escrowmq.broker.native.calls import Call, looks
from escrowmq.broker.native.writing import resolution_of
from escrowmq.broker.net.answering import Answering, reply_of
from escrowmq.broker.net.requests import handles
from escrowmq.broker.pop.places import PopPlaces
from escrowmq.broker.state.client_links import ClientLink
from escrowmq.broker.state.clients import CONSUMER, PRODUCER, Client, Clients
from escrowmq.broker.state.groups import Groups
from escrowmq.broker.state.topics import Topics
from escrowmq.broker.state.transaction_lookup import BY_HAND, named_half
from escrowmq.broker.write.broker_clock import BrokerClock
from escrowmq.broker.write.meta_writing import MetaWriting
from escrowmq.model.clock import GAP_MS
from escrowmq.model.errors import RequestRefused
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.limits import SHOWN_CHARS_MAX
from escrowmq.protocol.native.headers import NativeHeader, PagedHeader, TopicFilterHeader
from escrowmq.protocol.native.operator_headers import (
    ByHandHeader,
    ConfirmClockHeader,
    DecideByHandHeader,
    DeleteTopicHeader,
    PauseGroupHeader,
)
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.store.meta.meta import Meta
from escrowmq.store.reading.reader import StoreReader
from escrowmq.store.store import Store
from escrowmq.transaction.commands import Cataloged, Decision, End, EndReply, Resume
from escrowmq.transaction.pause_command import PauseGroup

GroupKey = tuple[str, str, str]
"""Group, role and client id; the id is empty for a group with no member online."""


@dataclass(frozen=True, slots=True)
class NativeAdmin:
    """Handles lists for operators, and copies of ``meta.db``."""

    store: Store
    reader: StoreReader
    meta: Meta
    meta_writing: MetaWriting
    clients: Clients[ClientLink]
    clock: BrokerClock
    topics: Topics
    groups: Groups
    places: PopPlaces

    @looks(NativeCode.LIST_TOPICS)
    def list_topics(self, call: Call[PagedHeader]) -> None:
        """List all topics."""
        topics = {topic.name: topic for topic in self.topics.all()}
        names, cursor = call.page_of(topics, str)
        mine = self.store.catalog.topics
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

    @looks(NativeCode.LIST_GROUPS)
    def list_groups(self, call: Call[PagedHeader]) -> None:
        """List all groups with their online members."""
        clients = self.clients
        members: dict[GroupKey, Client[ClientLink] | None] = {}
        for name in clients.producer_groups():
            for client in clients.producers(name):
                members[name, PRODUCER, client.client_id] = client
        for name in {*self.store.catalog.groups, *clients.consumer_groups()}:
            group = clients.consumers(name)
            if group is None:
                members[name, CONSUMER, ""] = None
            else:
                members |= {
                    (name, CONSUMER, client.client_id): client for client in group.members.values()
                }
        keys, cursor = call.page_of(members, tuple[str, str, str])
        ago_ms = self.clock.ago_ms
        call.answer_rows((_member(key, members[key], ago_ms) for key in keys), cursor=cursor)

    @looks(NativeCode.LIST_OFFSETS)
    def offsets(self, call: Call[TopicFilterHeader]) -> None:
        """List how far consumer groups have read each queue."""
        header, known = call.header, self.meta.offsets
        wanted = (
            key for key in known if header.group in ("", key[0]) and header.topic in ("", key[1])
        )
        keys, cursor = call.page_of(wanted, tuple[str, str, int])
        now_ms = self.clock.now_ms()

        def told(key: tuple[str, str, int]) -> tuple[object, ...]:
            queue = self.reader.queue(key[1], key[2])
            end = queue.end if queue is not None else 0
            progress = self.places.progress(*key, now_ms)
            lag = max(end - known[key] - progress.beyond, 0)
            return (*key, known[key], end, lag, progress.in_flight)

        call.answer_rows(map(told, keys), cursor=cursor)

    @looks(NativeCode.LIST_PAUSED)
    def paused(self, call: Call[PagedHeader]) -> None:
        """List the paused consumer groups."""
        paused = self.groups.paused
        names, cursor = call.page_of(paused, str)
        call.answer_rows(
            ((name, paused[name].by, paused[name].at_ms, paused[name].reason) for name in names),
            cursor=cursor,
        )

    @looks(NativeCode.COPY_META)
    def copy_meta(self, call: Call[NativeHeader]) -> None:
        """Copy ``meta.db``, for a backup."""

        def copied(copy: tuple[Path, int]) -> None:
            path = copy[0].absolute()
            call.answer(
                data_dir=str(path.parent),
                path=str(path),
                log_end=copy[1],
                free_bytes_min=self.store.config.free_bytes_min,
            )

        self.meta_writing.soon(call.request, self.meta_writing.copy(), copied)


@dataclass(frozen=True, slots=True)
class NativeHands:
    """Handles changes that an operator makes by hand."""

    answering: Answering
    store: Store
    reader: StoreReader
    clients: Clients[ClientLink]
    clock: BrokerClock
    topics: Topics
    contradictions: Contradictions

    @handles(NativeCode.DELETE_TOPIC)
    def delete_topic(self, call: Call[DeleteTopicHeader]) -> None:
        """Delete a topic; with force, even if it has undecided messages."""
        header = call.header
        command = self.topics.remove(header.topic, by=header.by, is_forced=header.is_forced)

        def removed(decision: Decision) -> None:
            reply = reply_of(decision, Cataloged)
            call.answer(
                is_deleted=reply.is_changed, undecided=reply.undecided, waiting=reply.waiting
            )

        self.answering.submit(call.request, command, removed)

    @handles(NativeCode.PAUSE_GROUP)
    def pause(self, call: Call[PauseGroupHeader]) -> None:
        """Pause or resume a consumer group."""
        header = call.header
        command = PauseGroup(
            name=header.group, is_paused=header.is_paused, by=header.by, reason=header.reason
        )

        def paused(decision: Decision) -> None:
            reply = reply_of(decision, Cataloged)
            online = self.clients.consumers(header.group)
            members = 0 if online is None else len(online.members)
            call.answer(is_changed=reply.is_changed, consumers_online=members)

        self.answering.submit(call.request, command, paused)

    @handles(NativeCode.DECIDE_BY_HAND)
    def decide_by_hand(self, call: Call[DecideByHandHeader]) -> None:
        """Decide a transaction by hand; a contrary decision of its producer is refused later."""
        header = call.header
        resolution = resolution_of(header.resolution)
        if resolution is Resolution.UNKNOWN or not header.reason:
            raise RequestRefused("settlement_incomplete", "say commit or rollback, and why")
        half = named_half(self.store, self.reader, header.half_offset, header.transaction_id)
        command = End(
            half_offset=half.half_offset,
            resolution=resolution,
            by=f"{header.by}{BY_HAND}{header.reason[:SHOWN_CHARS_MAX]}",
            epoch=header.epoch,
            seen_to=header.log_end,
            is_forced=header.is_forced,
        )

        def ended(decision: Decision) -> None:
            reply = reply_of(decision, EndReply)
            call.answer(
                decided=reply.state.label,
                decided_by=reply.by,
                decided_at_ms=reply.at_ms,
                is_repeated=reply.repeated,
            )

        def contradicted(refused: RequestRefused, stands: EndReply) -> None:
            self.contradictions.note(resolution, command.by, stands)
            call.request.decline(refused)

        self.answering.submit(call.request, command, ended, contradicted)

    @handles(NativeCode.RESUME)
    def resume(self, call: Call[ByHandHeader]) -> None:
        """Resume the back-checks of a parked transaction."""
        header = call.header
        half = named_half(self.store, self.reader, header.half_offset, header.transaction_id)
        command = Resume(half_offset=half.half_offset, by=header.by)
        self.answering.submit(call.request, command, lambda _: call.answer())

    @handles(NativeCode.CONFIRM_CLOCK)
    def confirm_clock(self, call: Call[ConfirmClockHeader]) -> None:
        """Record that a person vouches for the wall clock."""
        header, clock = call.header, self.clock
        command = clock.confirmation(header.by)
        gap_ms = clock.time.gap_ms
        if command is None:
            raise RequestRefused(
                "clock_not_doubted", "wall time and store time agree", gap_ms=gap_ms
            )
        if abs(gap_ms - header.gap_ms) >= GAP_MS:
            raise RequestRefused(
                "clock_gap_changed",
                "the clock was set in the meantime; read it again",
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

        self.answering.submit(call.request, command, confirmed)


def _member(
    key: GroupKey, client: Client[ClientLink] | None, at_ms: Callable[[int], int]
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
