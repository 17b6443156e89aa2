"""Groups, offsets, and transactions decided by hand, over a real socket."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from pathlib import Path

import pytest

from escrowmq.model.catalog import Group
from escrowmq.model.errors import EscrowError, ProtocolViolation, RequestRefused, StoreUnusable
from escrowmq.protocol.native.headers import LogRangeHeader, PagedHeader, TopicFilterHeader
from escrowmq.protocol.native.operator_headers import ByHandHeader, DecideByHandHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import GroupRow, OffsetRow
from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.client_bodies import (
    ConsumerMembership,
    Heartbeat,
    ProducerMembership,
)
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.store.meta.meta import Meta
from escrowmq.store.meta.sqlite_file import MetaFile
from escrowmq.transaction.commands import Park, PutGroup
from escrowmq.transaction.states import State
from tests.unit.broker.native_peer import all_rows, ask, hold, sent
from tests.unit.broker.wire import SEND, T0, Peer, sending, serving, visible


async def test_groups_are_listed_with_their_members_online(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        said = Heartbeat(
            client_id="c1",
            producers=(ProducerMembership(group="pay"),),
            consumers=(ConsumerMembership(group="ship"),),
        )
        await peer.ask(RequestCode.HEART_BEAT, body=encode_body(said))
        command = PutGroup(group=Group(name="away"))
        await server.broker.writer.submit(command)
        rows = await all_rows(peer, NativeCode.LIST_GROUPS, PagedHeader(limit=1))
        assert [(row.group, row.role, row.client_id) for row in rows] == [
            ("away", "consumer", None),
            ("pay", "producer", "c1"),
            ("ship", "consumer", "c1"),
        ]
        assert rows[1] == GroupRow(
            group="pay",
            role="producer",
            client_id="c1",
            address=rows[1].address,
            language="PYTHON",
            heard_at_ms=T0,
        )
        assert rows[1].address.startswith("127.0.0.1:")


async def test_offsets_are_listed_with_their_lag(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent()] * 5)
        for group, topic, queue_id in (("a", "orders", 1), ("a", "gone", 0), ("b", "orders", 1)):
            server.broker.meta.set_offset(group, topic, queue_id, 2)
        rows = await all_rows(peer, NativeCode.LIST_OFFSETS, TopicFilterHeader(limit=1))
        assert rows == [
            OffsetRow(group="a", topic="gone", queue_id=0, offset=2, end=0, lag=0),
            OffsetRow(group="a", topic="orders", queue_id=1, offset=2, end=5, lag=3),
            OffsetRow(group="b", topic="orders", queue_id=1, offset=2, end=5, lag=3),
        ]
        some = await all_rows(
            peer, NativeCode.LIST_OFFSETS, TopicFilterHeader(group="a", topic="orders")
        )
        assert some == rows[1:2]


@pytest.mark.parametrize("cursor", ["x", "[1]", '"text"'])
async def test_a_cursor_that_the_broker_did_not_make_is_refused(
    tmp_path: Path, cursor: str
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        with pytest.raises(ProtocolViolation, match="cursor_malformed"):
            await ask(peer, NativeCode.LIST_GROUPS, PagedHeader(cursor=cursor))


def settling(**fields: object) -> DecideByHandHeader:
    values = {"by": "ann", "resolution": "commit", "reason": "the order is there", **fields}
    return DecideByHandHeader(**values)  # type: ignore[arg-type]


async def test_a_transaction_is_settled_by_hand_and_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t", sent(b"paid"))
        done = (await ask(peer, NativeCode.DECIDE_BY_HAND, settling(transaction_id="t"))).header
        assert (done.decided, done.is_repeated, done.decided_at_ms) == ("committed", False, T0)
        assert done.decided_by == "ann by hand: the order is there"
        assert [one.body for one in visible(server)] == [b"paid"]
        again = (
            await ask(peer, NativeCode.DECIDE_BY_HAND, settling(half_offset=0, by="bob"))
        ).header
        assert (again.is_repeated, again.decided_by) == (True, done.decided_by)
        with pytest.raises(RequestRefused, match="already_committed"):
            await ask(
                peer, NativeCode.DECIDE_BY_HAND, settling(half_offset=0, resolution="rollback")
            )
        assert server.broker.contradictions.count == 1


@pytest.mark.parametrize("resolution", ["commit", "rollback"])
async def test_that_a_settlement_was_forced_is_in_its_op_record(
    tmp_path: Path, resolution: str
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for name in ("asked", "forced", "two-forced"):
            await hold(peer, name, *[sent(b"paid")] * (2 if name == "two-forced" else 1))
            header = settling(
                transaction_id=name, resolution=resolution, is_forced=name.endswith("forced")
            )
            await ask(peer, NativeCode.DECIDE_BY_HAND, header)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        ops = await all_rows(peer, NativeCode.LIST_OPS, LogRangeHeader())
        assert [(op.head, op.is_forced) for op in ops] == [(0, False), (1, True), (2, True)]


async def test_a_settlement_has_an_outcome_and_a_reason(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t")
        for wrong in ({"resolution": "unknown"}, {"reason": ""}):
            with pytest.raises(RequestRefused, match="settlement_incomplete"):
                await ask(peer, NativeCode.DECIDE_BY_HAND, settling(half_offset=0, **wrong))
        with pytest.raises(RequestRefused, match="transaction_unknown"):
            await ask(peer, NativeCode.DECIDE_BY_HAND, settling(half_offset=9))
        assert server.broker.store.core.row(0).state is State.PREPARED


async def test_a_parked_transaction_is_resumed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t")
        header = ByHandHeader(transaction_id="t", by="ann")
        with pytest.raises(RequestRefused, match="not_parked"):
            await ask(peer, NativeCode.RESUME, header)
        await server.broker.writer.submit(Park(half_offset=0, reason="test"))
        await ask(peer, NativeCode.RESUME, header)
        assert server.broker.store.core.row(0).state is State.PREPARED


async def test_the_broker_answers_others_while_it_copies_the_small_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_copy = threading.Event()
    copy_to = MetaFile.copy_to

    def waits(file: MetaFile, path: str) -> None:
        assert may_copy.wait(20)
        copy_to(file, path)

    monkeypatch.setattr(MetaFile, "copy_to", waits)
    async with serving(tmp_path) as server:
        backup, other = [await Peer.to(server.broker_address) for _ in range(2)]
        copying = asyncio.ensure_future(ask(backup, NativeCode.COPY_META))
        try:
            assert (await other.ask(SEND, sending(), b"x")).code == ResponseCode.SUCCESS
            assert not copying.done()
        finally:
            may_copy.set()
        with closing(Meta((await copying).header.path)) as copied:
            assert copied.bad_rows == 0


async def test_a_copy_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_file: MetaFile, _path: str) -> None:
        raise StoreUnusable("meta_io_failed", "the disk failed")

    monkeypatch.setattr(MetaFile, "copy_to", fails)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        with pytest.raises(EscrowError, match="meta_io_failed"):
            await ask(peer, NativeCode.COPY_META)
