"""Stored messages in bulk, and queues by time, over a real socket."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from escrowmq.broker.native import calls, reading
from escrowmq.broker.write import pace
from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.protocol.message.properties import tags_code
from escrowmq.protocol.message.stored_message import (
    SYS_PREPARED,
    StoredMessage,
    decode_many,
    record_crc,
)
from escrowmq.protocol.native.frames import BlocksAnswer, encode_call, read_blocks_answer
from escrowmq.protocol.native.headers import ListQueuesHeader, PagedHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.stored_headers import ReadStoredHeader
from escrowmq.testing import ManualClock
from tests.unit.broker.native_peer import all_rows, ask, decide, hold, sent
from tests.unit.broker.wire import T0, Peer, serving

OPAQUE = 7_000_000


async def read(peer: Peer, **fields: object) -> BlocksAnswer:
    values = {"topic": "orders", "queue_id": 1, "start": 0, "end": 2**40, **fields}
    peer.write(encode_call(NativeCode.READ_STORED, OPAQUE, ReadStoredHeader(**values)))  # type: ignore[arg-type]
    frame = await peer.until(lambda one: one.is_response and one.opaque == OPAQUE)
    return read_blocks_answer(NativeCode.READ_STORED, frame)


def stored(answer: BlocksAnswer) -> list[StoredMessage]:
    assert sum(answer.columns["size"].tolist()) == len(answer.data)
    return decode_many(answer.data)


async def test_messages_come_as_they_were_written(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        held = await hold(peer, "t", sent(b"held"))
        await hold(peer, "undecided")
        clock.advance(seconds=5)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(b"sent")])
        await decide(peer, 0)
        answer = await read(peer)
        told = answer.header
        assert (told.row_count, told.next_start, told.queue_start, told.queue_end) == (2, 2, 0, 2)
        assert answer.columns["queue_offset"].tolist() == [0, 1]
        assert answer.columns["visible_at_ms"].tolist() == [T0 + 5_000] * 2
        first, second = stored(answer)
        assert (first.body, second.body) == (b"sent", b"held")
        # A half message is returned as it was held; its queue entry says where it is visible.
        assert second.sys_flag & SYS_PREPARED
        assert (second.stored_at_ms, second.log_offset) == (T0, held.rows[0].log_offset)
        sizes = answer.columns["size"].tolist()
        records = [answer.data[: sizes[0]], answer.data[sizes[0] :]]
        assert answer.columns["crc"].tolist() == [record_crc(record) for record in records]


async def test_a_range_is_read_in_answers_of_limited_size(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(b"%d" % number) for number in range(9)])
        first = await read(peer, start=2, end=8, limit=4)
        assert [one.body for one in stored(first)] == [b"2", b"3", b"4", b"5"]
        assert first.header.next_start == 6
        rest = await read(peer, start=6, end=8)
        assert [one.body for one in stored(rest)] == [b"6", b"7"]
        assert rest.header.next_start == 8
        # An answer has at least one message, however large.
        assert len(stored(await read(peer, bytes_max=1))) == 1
        assert len(stored(await read(peer, bytes_max=500))) == 2
        assert stored(await read(peer, start=9)) == []


async def test_an_answer_has_a_limit_of_bytes_whatever_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(b"1"), sent(b"2")])
        monkeypatch.setattr(pace, "IN_USE_S", 0)
        assert len(stored(await read(peer, bytes_max=2**31 - 1))) == 2
        monkeypatch.setattr(reading, "READ_BYTES_MAX", 10)
        assert len(stored(await read(peer, bytes_max=2**31 - 1))) == 1


async def test_answers_are_small_beside_a_sender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "IN_USE_S", 3_600)
    monkeypatch.setattr(reading, "STORED_BYTES_BESIDE", 10)
    monkeypatch.setattr(calls, "PAGE_ROWS_BESIDE", 3)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert len((await ask(peer, NativeCode.LIST_TOPICS, PagedHeader())).rows) > 3
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(b"1"), sent(b"2")])
        assert len(stored(await read(peer))) == 1
        assert len((await ask(peer, NativeCode.LIST_TOPICS, PagedHeader())).rows) == 3


async def test_tags_are_filtered_by_their_codes(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(TAGS=tag) for tag in ("a", "b", "c")])
        codes = f"{tags_code('a')},{tags_code('c')}"
        answer = await read(peer, tag_codes=codes)
        assert answer.columns["queue_offset"].tolist() == [0, 2]
        assert answer.header.next_start == 3
        for garbage in ("x", "1,", "99999999999", "1 2"):
            with pytest.raises(ProtocolViolation, match="filter_malformed"):
                await read(peer, tag_codes=garbage)


async def test_deleted_messages_are_passed_over_and_missing_ones_are_empty(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(b"1"), sent(b"2"), sent(b"3")])
        queue = server.broker.reader.queue("orders", 1)
        assert queue is not None
        queue.forget_below(2)
        answer = await read(peer)
        assert [one.body for one in stored(answer)] == [b"3"]
        assert answer.header.queue_start == 2
        empty = await read(peer, queue_id=3)
        assert (stored(empty), empty.header.queue_end) == ([], 0)
        with pytest.raises(RequestRefused, match="topic_unknown"):
            await read(peer, topic="nowhere")


async def test_queues_of_some_topics_are_listed(tmp_path: Path) -> None:
    async with serving(tmp_path, topics={"queue_count": 2}) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(topic=topic) for topic in ("a", "b", "c")])
        rows = await all_rows(peer, NativeCode.LIST_QUEUES, ListQueuesHeader(topic="a,c"))
        assert [(row.topic, row.end) for row in rows] == [("a", 0), ("a", 1), ("c", 0), ("c", 1)]


async def test_queues_are_narrowed_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SEARCHED_MAX", 1)
    clock = ManualClock(T0)
    async with serving(tmp_path, clock, topics={"queue_count": 2}) as server:
        peer = await Peer.to(server.broker_address)
        for _ in range(5):
            await ask(peer, NativeCode.SEND_MANY, rows=[sent()])
            clock.advance(seconds=1)

        async def between(**fields: int) -> list[tuple[int, int]]:
            header = msgspec.structs.replace(ListQueuesHeader(topic="orders"), **fields)
            rows = await all_rows(peer, NativeCode.LIST_QUEUES, header)
            return [(row.start, row.end) for row in rows]

        assert await between(from_ms=T0 + 2_000) == [(0, 0), (2, 5)]
        assert await between(until_ms=T0 + 2_000) == [(0, 0), (0, 2)]
        assert await between(from_ms=T0 + 1_500, until_ms=T0 + 3_001) == [(0, 0), (2, 4)]
        assert await between(from_ms=T0 + 3_000, until_ms=T0) == [(0, 0), (3, 3)]
        assert await between(from_ms=T0 + 9_000) == [(0, 0), (5, 5)]
