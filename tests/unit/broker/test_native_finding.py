"""Messages found by each id that the broker hands out, and previews of transactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.native import finding
from escrowmq.protocol.native.frames import NativeReply
from escrowmq.protocol.native.previews import (
    PREVIEWS_MAX,
    FindMessagesHeader,
    PreviewHalvesHeader,
    PreviewRow,
    SoughtHalfRow,
)
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import ManualClock
from tests.unit.broker.native_peer import ask, decide, hold, sent
from tests.unit.broker.wire import T0, Peer, serving


async def find(peer: Peer, message_id: str) -> NativeReply:
    return await ask(peer, NativeCode.FIND_MESSAGES, FindMessagesHeader(message_id=message_id))


async def preview(peer: Peer, *half_offsets: int, **fields: Any) -> NativeReply:  # noqa: ANN401
    rows = [SoughtHalfRow(half_offset=half_offset) for half_offset in half_offsets]
    return await ask(peer, NativeCode.PREVIEW_HALVES, PreviewHalvesHeader(**fields), rows)


# By id.


async def test_an_ordinary_message_is_found_by_its_unique_key_and_its_offset_id(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(b"1", UNIQ_KEY="u"), sent(b"2", KEYS="u")])
        answer = await find(peer, "u")
        # The other message has "u" as a key, which is not an id.
        assert [row.body for row in answer.rows] == [b"1"]
        assert (answer.header.found_by, answer.header.state) == ("unique_key", "visible")
        assert answer.header.half_offset is None
        for message_id in (answer.rows[0].message_id, answer.rows[0].message_id.lower()):
            again = await find(peer, message_id)
            assert (again.rows, again.header.found_by) == (answer.rows, "message_id")


async def test_a_half_message_is_found_by_each_of_its_ids_in_every_state(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for at, transaction_id in enumerate(("stays", "commits", "rolls")):
            await hold(peer, transaction_id, sent(b"1", UNIQ_KEY=f"u{at}"))
        await decide(peer, 1)
        await decide(peer, 2, "rollback")
        expected = {"stays": "prepared", "commits": "visible", "rolls": "rolled_back"}
        for at, (transaction_id, state) in enumerate(expected.items()):
            found = await find(peer, f"u{at}")
            kinds = {
                f"u{at}": "unique_key",
                transaction_id: "transaction_id",
                found.rows[0].message_id: "message_id",
                str(at): "half_offset",
            }
            for message_id, found_by in kinds.items():
                again = await find(peer, message_id)
                assert again.rows == found.rows
                assert again.header.found_by == found_by
                assert (again.header.state, again.header.half_offset) == (state, at)


async def test_a_transaction_s_id_finds_the_messages_of_all_its_requests(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t", sent(b"1"), sent(b"2"))
        await hold(peer, "t", sent(b"3"), number=1)
        for _ in range(2):
            assert [row.body for row in (await find(peer, "t")).rows] == [b"1", b"2", b"3"]
            await decide(peer, 0)


async def test_a_message_that_waits_for_its_time_is_found(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        await ask(
            peer, NativeCode.SEND_MANY, rows=[sent(b"1", UNIQ_KEY="u", TIMER_DELAY_MS="5000")]
        )
        found = await find(peer, "u")
        assert (found.header.state, found.header.due_at_ms) == ("waiting", T0 + 5_000)
        assert (found.header.half_offset, found.rows[0].visible_at_ms) == (None, None)


async def test_the_message_that_was_sent_comes_before_its_retries(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(b"first", UNIQ_KEY="u")])
        retry = sent(b"retry", topic="%RETRY%group", UNIQ_KEY="u", queue_id=0)
        await ask(peer, NativeCode.SEND_MANY, rows=[retry])
        assert [row.body for row in (await find(peer, "u")).rows] == [b"first", b"retry"]


async def test_another_broker_s_offset_id_finds_nothing_here(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(b"1", UNIQ_KEY="u")])
        mine = (await find(peer, "u")).rows[0].message_id
        assert (await find(peer, "0A000001" + mine[8:])).rows == []


@pytest.mark.parametrize("odd", ["x", "99", "9" * 30, "²", "FF" * 16, "0" * 32, "-1", "%"])
async def test_a_malformed_id_finds_nothing(tmp_path: Path, odd: str) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t", sent(b"1"))
        assert (await find(peer, odd)).rows == []


# Previews.


async def test_a_preview_names_topic_keys_tags_and_the_start_of_the_body(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t", sent(b"0123456789", UNIQ_KEY="u", KEYS="k1 k2", TAGS="x"))
        answer = await preview(peer, 0, body_bytes=4)
        assert answer.header.covered == 1
        assert answer.rows == [
            PreviewRow(
                half_offset=0,
                place=0,
                message_count=1,
                topic="orders",
                queue_id=1,
                message_id=(await find(peer, "u")).rows[0].message_id,
                unique_key="u",
                keys="k1 k2",
                tags="x",
                body=b"0123",
                body_bytes=10,
                sys_flag=answer.rows[0].sys_flag,
            )
        ]


async def test_a_preview_of_many_messages_is_limited_and_says_how_many_there_are(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t", sent(b"1"), sent(b"2", topic="others"))
        await hold(peer, "t", sent(b"3"), number=1)
        for _ in range(2):
            rows = (await preview(peer, 0, messages_max=10)).rows
            assert [row.body for row in rows] == [b"1", b"2", b"3"]
            assert [row.place for row in rows] == [0, 1, 2]
            assert {row.message_count for row in rows} == {3}
            (first,) = (await preview(peer, 0)).rows
            assert (first.body, first.message_count) == (b"1", 3)
            # In the second round, the record of the decision names the messages.
            await decide(peer, 0)


async def test_a_missing_transaction_has_no_preview(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t", sent(b"1"))
        answer = await preview(peer, 7, 0, -1)
        assert answer.header.covered == 3
        assert [row.half_offset for row in answer.rows] == [0]


async def test_an_answer_ends_when_its_time_is_over_or_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for number in range(3):
            await hold(peer, f"t{number}", sent(b"1"))
        full = await preview(peer, 0, 1, 2, messages_max=PREVIEWS_MAX)
        assert (full.header.covered, len(full.rows)) == (1, 1)
        monkeypatch.setattr(finding, "PAGE_S_MAX", 0)
        late = await preview(peer, 0, 1, 2)
        assert (late.header.covered, len(late.rows)) == (1, 1)
        # The messages of a single transaction do not delay other clients either.
        await hold(peer, "many", sent(b"1"), sent(b"2"))
        (first,) = (await preview(peer, 3, messages_max=10)).rows
        assert (first.body, first.message_count) == (b"1", 2)
