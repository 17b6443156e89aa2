"""Bulk half messages made by column equal those made one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4
from zlib import crc32

import pytest

from escrowmq.broker.native import writing
from escrowmq.broker.server import Server
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.message.stored_message import decode
from escrowmq.protocol.native.headers import HoldHeader
from escrowmq.protocol.native.previews import FindMessagesHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.row_forms import RowForm
from escrowmq.protocol.native.rows import AttemptRow, SentRow
from escrowmq.protocol.native.sink_headers import DecideBatchHeader
from escrowmq.store.config import MIB
from escrowmq.store.log.frames import HEAD_BYTES
from escrowmq.transaction.records import Prepared
from tests.unit.broker.native_peer import ask, hold, sent
from tests.unit.broker.wire import Peer, serving, visible

HOLD = HoldHeader(producer_group="pay", transaction_id="t", number=0, is_bulk=True)


def fields(row: SentRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


def sent_with(properties: str) -> SentRow:
    row = sent(b"body")
    return SentRow(**{**fields(row), "properties": properties})


def some(count: int, **pairs: str) -> list[SentRow]:
    return [
        sent(b"%d" % n, queue_id=n % 4, UNIQ_KEY=f"key-{n}", KEYS=f"order-{n}", **pairs)
        for n in range(count)
    ]


#: Requests that the broker makes by column.
USUAL: dict[str, list[SentRow]] = {
    "many": some(300),
    "several topics": [sent(b"1", "orders", UNIQ_KEY="1"), sent(b"2", "stock", UNIQ_KEY="2")],
    "any queue": [sent(b"%d" % n, queue_id=-1 - n % 2, UNIQ_KEY=f"k{n}") for n in range(9)],
    "tags": [*some(2, TAGS="paid"), *some(2, TAGS="\u00fcber"), *some(1)],
    "several keys": [sent(b"1", UNIQ_KEY="1", KEYS="a b  c"), sent(b"2", UNIQ_KEY="2", KEYS="d")],
    "no keys": [sent(b"1", UNIQ_KEY="1"), sent(b"2", UNIQ_KEY="2")],
    "others' marks": some(2, TRAN_MSG="false", PGROUP="other", REAL_TOPIC="x"),
    "delays": [*some(2, TIMER_DELAY_MS="5000"), *some(1), *some(1, DELAY="2")],
    "flags": [SentRow(**{**fields(sent(b"1", UNIQ_KEY="1")), "sys_flag": 13, "flag": -5})],
    "a name twice": [sent_with("UNIQ_KEY\x01old\x02UNIQ_KEY\x01new\x02KEYS\x01\x02")],
}
#: Requests that the broker makes one by one.
UNUSUAL: dict[str, list[SentRow]] = {
    "no unique key": [sent(b"1", UNIQ_KEY="1"), sent(b"2")],
    "no properties": [sent_with("")],
    "no last separator": [sent_with("UNIQ_KEY\x01k")],
    "a topic of a group": [sent(b"1", "%RETRY%group", queue_id=0, UNIQ_KEY="1")],
}


def is_by_column(server: Server, row: int) -> bool:
    return row in server.broker.store.reading._identities


def facts_of(server: Server, first: int, count: int) -> list[Any]:
    """Return all facts about half messages, except their positions and their transaction."""
    store = server.broker.store
    told: list[Any] = []
    for row in range(first, first + count):
        half = store.core.row(row)
        stored = decode(store.reading.record_of(half))
        pairs = parse_properties(stored.properties)
        pairs.pop("__transactionId__")
        if "UNIQ_KEY" not in pairs or len(pairs["UNIQ_KEY"]) == len(uuid4().hex):
            pairs["UNIQ_KEY"] = "made up"
        told += [
            (stored.topic, stored.queue_id, stored.body, pairs, half.size, half.tags, half.queue),
            (stored.flag, stored.sys_flag, stored.born_at_ms, stored.born_host),
            store.core.delays.get(row),
        ]
    record = store.reading.frame(store.core.row(first).location - HEAD_BYTES).records[-1]
    assert isinstance(record, Prepared)
    placed = record.placed
    # The last key belongs to the transaction.
    told.append((placed.keys[:-1], placed.keyed[:-1], placed.tags, record.deliver_after_ms))
    return told


@pytest.mark.parametrize("form", list(RowForm))
@pytest.mark.parametrize("name", [*USUAL, *UNUSUAL])
async def test_both_ways_store_the_same_bytes(
    tmp_path: Path, name: str, form: RowForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = USUAL.get(name) or UNUSUAL[name]
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        # Two transaction ids that lead to the same queues.
        ids = [f"t{number}" for number in range(100) if crc32(b"t%d" % number) % 8 == 3][:2]
        first = await hold(peer, ids[0], *rows, is_bulk=True, form=form)
        assert is_by_column(server, 0) is (name in USUAL)
        monkeypatch.setattr(writing.NativeWriting, "_many_halves", lambda *_: None)
        second = await hold(peer, ids[1], *rows, is_bulk=True, form=form)
        assert not is_by_column(server, len(rows))
        assert facts_of(server, 0, len(rows)) == facts_of(server, len(rows), len(rows))
        assert [row.queue_id for row in first.rows] == [row.queue_id for row in second.rows]
        assert [row.half_offset for row in first.rows] == list(range(len(rows)))
        for row in first.rows:
            assert row.log_offset == server.broker.store.core.row(row.half_offset).log_offset


async def test_a_request_sent_again_is_answered_as_before_and_another_one_is_refused(
    tmp_path: Path,
) -> None:
    rows = [sent(b"%d" % n, queue_id=-1, UNIQ_KEY=f"k{n}") for n in range(5)]
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        first = await hold(peer, "t", *rows, is_bulk=True)
        again = await hold(peer, "t", *rows, is_bulk=True)
        assert (again.header.is_repeated, again.rows) == (True, first.rows)
        for other in (rows[:4], [*rows[:4], sent(b"x", queue_id=-1, UNIQ_KEY="x")]):
            with pytest.raises(RequestRefused, match="number_reused"):
                await hold(peer, "t", *other, is_bulk=True)
        assert (await hold(peer, "t", *rows, number=1, is_bulk=True)).header.half_offset == 5
        with pytest.raises(RequestRefused, match="number_gap"):
            await hold(peer, "t", *rows, number=3, is_bulk=True)


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([], "no_messages"),
        ([*some(3), sent(b"1", queue_id=99, UNIQ_KEY="1")], "queue_id_illegal"),
        ([*some(3), sent(b"1", "RMQ_SYS_TRANS_HALF_TOPIC", UNIQ_KEY="1")], "topic_of_system"),
        ([*some(3), sent(b"1", "no topic", UNIQ_KEY="1")], "topic_illegal"),
        ([*some(3), sent(b"1", UNIQ_KEY="1", LONG="x" * 32_700)], "properties_too_large"),
        ([*some(3), sent(bytes(4 * MIB + 1), UNIQ_KEY="1")], "body_too_large"),
        ([sent(bytes(4 * MIB), UNIQ_KEY=f"{n}") for n in range(3)], "request_too_large"),
        (some(1, TIMER_DELAY_MS="9" * 15), "delay_illegal"),
        (some(1, DELAY="soon"), "properties_malformed"),
    ],
)
async def test_a_batch_with_an_unstorable_message_is_refused_as_a_whole(
    tmp_path: Path, rows: list[SentRow], code: str
) -> None:
    policy = {"transaction_bytes_max": 12 * MIB}
    async with serving(tmp_path, policy=policy) as server:
        peer = await Peer.to(server.broker_address)
        with pytest.raises(EscrowError, match=code):
            await ask(peer, NativeCode.HOLD_HALVES, HOLD, rows)
        assert server.broker.store.table.end == 0


async def test_an_attempt_of_many_requests_becomes_visible_at_once_also_after_a_restart(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        async with serving(tmp_path) as server:
            peer = await Peer.to(server.broker_address)
            if not server.broker.store.table.end:
                for number in range(3):
                    await hold(peer, "a", *some(100), number=number, is_bulk=True)
                header = DecideBatchHeader(app_id="app", query_id="q", batch_number=0, by="driver")
                claim = AttemptRow(transaction_id="a", last_number=2, messages=300)
                done = (await ask(peer, NativeCode.DECIDE_BATCH, header, [claim])).header
                assert (done.outcome, done.messages) == ("decided", 300)
            bodies = [
                one.body for queue_id in range(4) for one in visible(server, "orders", queue_id)
            ]
            assert len(bodies) == 300
            assert [one.unique_key for one in await found(peer, "order-7")] == ["key-7"] * 3


async def found(peer: Peer, key: str) -> list[Any]:
    header = FindMessagesHeader(topic="orders", key=key)
    return (await ask(peer, NativeCode.FIND_MESSAGES, header)).rows


async def test_a_broker_with_an_ipv6_address_makes_them_one_by_one(tmp_path: Path) -> None:
    async with serving(tmp_path, broker={"advertise_host": "fd00::1"}) as server:
        host = f"127.0.0.1:{server.broker_address.rpartition(':')[2]}"
        peer = await Peer.to(host)
        await hold(peer, "t", *some(3), is_bulk=True)
        assert not is_by_column(server, 0)
        assert server.broker.store.table.end == 3
