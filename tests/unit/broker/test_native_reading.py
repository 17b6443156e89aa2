"""Messages and queues over a real socket: by queue offsets, by key, by id."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.broker.native import calls, finding
from escrowmq.broker.native import reading as native_reading
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.native.frames import NativeReply
from escrowmq.protocol.native.headers import (
    ListQueuesHeader,
    PagedHeader,
    ReadMessagesHeader,
)
from escrowmq.protocol.native.previews import FindMessagesHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.row_forms import RowForm
from escrowmq.protocol.native.rows import MessageRow, QueueRow
from escrowmq.testing import ManualClock
from tests.unit.broker.native_peer import all_rows, ask, decide, hold, sent
from tests.unit.broker.wire import T0, Peer, serving

READ = NativeCode.READ_MESSAGES


def reading(**fields: object) -> ReadMessagesHeader:
    values = {"topic": "orders", "queue_id": 1, **fields}
    return ReadMessagesHeader(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", list(RowForm))
async def test_messages_come_with_all_that_is_known_of_them(tmp_path: Path, form: RowForm) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        await ask(
            peer, NativeCode.SEND_MANY, rows=[sent(b"1", UNIQ_KEY="u", KEYS="k1 k2", TAGS="x")]
        )
        held = await hold(peer, "t", sent(b"2", UNIQ_KEY="v"))
        clock.advance(seconds=5)
        await decide(peer, 0)
        answer = await ask(peer, READ, reading(form=form))
        assert (answer.header.queue_start, answer.header.queue_end) == (0, 2)
        assert answer.header.cursor is None
        first, second = answer.rows
        assert first == MessageRow(
            topic="orders",
            queue_id=1,
            queue_offset=0,
            log_offset=first.log_offset,
            message_id=first.message_id,
            unique_key="u",
            keys="k1 k2",
            tags="x",
            body=b"1",
            properties=first.properties,
            flag=7,
            sys_flag=0,
            born_at_ms=T0 - 5,
            stored_at_ms=T0,
            visible_at_ms=T0,
            reconsume_times=0,
            transaction_id=None,
        )
        assert parse_properties(first.properties.encode())["KEYS"] == "k1 k2"
        assert (second.body, second.transaction_id, second.queue_offset) == (b"2", "t", 1)
        assert (second.stored_at_ms, second.visible_at_ms) == (T0, T0 + 5_000)
        assert second.log_offset == held.rows[0].log_offset
        # As consumers see it, the message is committed.
        assert second.sys_flag == 0x8


async def test_only_visible_messages_of_the_range_are_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        rows = [sent(b"%d" % number) for number in range(10)]
        await ask(peer, NativeCode.SEND_MANY, rows=rows)
        await hold(peer, "undecided")
        found = await all_rows(peer, READ, reading(start=2, end=8, limit=4))
        assert [row.body for row in found] == [b"%d" % number for number in range(2, 8)]
        assert (await ask(peer, READ, reading(start=10))).rows == []
        assert (await ask(peer, READ, reading(start=99))).rows == []
        assert (await ask(peer, READ, reading(start=5, end=2))).rows == []


async def test_a_page_has_a_limit_of_bytes_but_at_least_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_reading, "READ_BYTES_MAX", 10)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(b"1"), sent(b"2")])
        first = await ask(peer, READ, reading())
        assert ([row.body for row in first.rows], first.header.cursor) == ([b"1"], "1")
        assert len(await all_rows(peer, READ, reading())) == 2


async def test_deleted_messages_are_passed_over(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(b"1"), sent(b"2"), sent(b"3")])
        queue = server.broker.reader.queue("orders", 1)
        assert queue is not None
        queue.forget_below(2)
        answer = await ask(peer, READ, reading())
        assert [row.body for row in answer.rows] == [b"3"]
        assert answer.header.queue_start == 2


async def test_an_unused_queue_is_empty_and_an_unknown_topic_is_refused(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent()])
        assert (await ask(peer, READ, reading(queue_id=3))).rows == []
        with pytest.raises(RequestRefused, match="topic_unknown"):
            await ask(peer, READ, reading(topic="nowhere"))


@pytest.mark.parametrize("form", list(RowForm))
async def test_queues_are_listed_at_one_position_of_the_log(tmp_path: Path, form: RowForm) -> None:
    async with serving(tmp_path, topics={"queue_count": 2}) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(), sent(topic="a"), sent()])
        answer = await ask(peer, NativeCode.LIST_QUEUES, ListQueuesHeader(form=form))
        assert answer.header.log_end == server.broker.store.durable_end
        born = {name: kept.born for name, kept in server.broker.catalog.topics.items()}
        assert 0 < born["orders"] < born["a"]
        assert answer.rows == [
            QueueRow(topic="a", queue_id=0, start=0, end=0, born=born["a"]),
            QueueRow(topic="a", queue_id=1, start=0, end=1, born=born["a"]),
            QueueRow(topic="orders", queue_id=0, start=0, end=0, born=born["orders"]),
            QueueRow(topic="orders", queue_id=1, start=0, end=2, born=born["orders"]),
        ]
        paged = await all_rows(peer, NativeCode.LIST_QUEUES, ListQueuesHeader(limit=1))
        assert paged == answer.rows
        one = await all_rows(peer, NativeCode.LIST_QUEUES, ListQueuesHeader(topic="a", limit=1))
        assert one == answer.rows[:2]


async def test_messages_are_found_by_key_and_by_id(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        rows = [sent(b"1", KEYS="k"), sent(b"2", KEYS="k j", UNIQ_KEY="u"), sent(b"3")]
        await ask(peer, NativeCode.SEND_MANY, rows=rows)
        await hold(peer, "t", sent(b"held"))
        found = (await find(peer, topic="orders", key="k")).rows
        assert [row.body for row in found] == [b"2", b"1"]
        assert len((await find(peer, topic="orders", key="k", limit=1)).rows) == 1
        assert (await find(peer, topic="orders", key="u")).rows == found[:1]
        assert (await find(peer, message_id=found[0].message_id)).rows == found[:1]


async def test_an_undecided_message_is_found_by_its_id_or_if_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t", sent(b"held", KEYS="k"))
        assert (await find(peer, topic="orders", key="k")).rows == []
        (asked_for,) = (await find(peer, topic="orders", key="k", with_undecided=True)).rows
        assert (asked_for.body, asked_for.queue_offset) == (b"held", None)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(b"other", KEYS="o")])
        (other,) = (await find(peer, topic="orders", key="o")).rows
        log_offset = server.broker.store.core.row(0).log_offset
        message_id = f"{other.message_id[:16]}{log_offset:016X}"
        (held,) = (await find(peer, message_id=message_id)).rows
        assert (held.body, held.queue_offset, held.visible_at_ms) == (b"held", None, None)
        assert held.stored_at_ms == T0
        assert (await find(peer, message_id=f"{other.message_id[:16]}{5:016X}")).rows == []


async def test_a_search_for_nothing_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for fields in ({}, {"topic": "orders"}, {"key": "k"}):
            with pytest.raises(RequestRefused, match="search_unnamed"):
                await find(peer, **fields)


async def test_a_search_ends_once_it_found_enough_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "READ_BYTES_MAX", 10)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(b"1", KEYS="k"), sent(b"2", KEYS="k")])
        assert [row.body for row in (await find(peer, topic="orders", key="k")).rows] == [b"2"]


async def test_an_answer_that_no_client_would_take_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "ANSWER_BYTES_MAX", 500)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(bytes(100))] * 4)
        with pytest.raises(RequestRefused, match="answer_too_large"):
            await ask(peer, READ, reading())
        assert len(await all_rows(peer, READ, reading(limit=1))) == 4


async def find(peer: Peer, **fields: object) -> NativeReply:
    return await ask(peer, NativeCode.FIND_MESSAGES, FindMessagesHeader(**fields))  # type: ignore[arg-type]


async def test_topics_are_listed_the_system_s_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent()])
        rows = await all_rows(peer, NativeCode.LIST_TOPICS, PagedHeader(limit=3))
        names = [row.topic for row in rows]
        assert names == sorted(names)
        mine = next(row for row in rows if row.topic == "orders")
        assert (mine.is_system, mine.write_queue_count, mine.created_at_ms) == (False, 8, T0)
        assert mine.message_type == "NORMAL"
        assert next(row for row in rows if row.topic == "TBW102").is_system
