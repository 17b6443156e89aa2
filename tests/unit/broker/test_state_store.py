"""A broker with a state store: scans go to it, and half messages wait for it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from escrowmq.broker.native.status import status
from escrowmq.broker.server import Server
from escrowmq.broker.watch.alert_rules import ALERTS
from escrowmq.broker.write import following
from escrowmq.model.errors import ProtocolViolation, RequestRefused, Unavailable
from escrowmq.protocol.native.comparisons import ListStateStoreHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.codes import ResponseCode
from escrowmq.testing.clock import ManualClock
from escrowmq.transaction.commands import BatchReply, DecideBatch, Verdicts
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.state_store import StateStore
from tests.unit.broker.asking import answering, check, producer
from tests.unit.broker.native_peer import all_rows, ask
from tests.unit.broker.state_store_brokers import (
    KINDS,
    broker,
    end_connection,
    follower,
    held,
    run_by_hand,
)
from tests.unit.broker.test_metrics import scrape
from tests.unit.broker.wire import (
    COMMIT,
    END,
    SEND,
    Peer,
    clock_of,
    ending,
    eventually,
    half,
    sending,
    serving,
    visible,
)


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    run_by_hand(monkeypatch)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_round_asks_about_what_the_state_store_finds(kind: str, tmp_path: Path) -> None:
    async with broker(tmp_path, kind) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"paid")
        second = await peer.ask(SEND, half("t2"), b"paid")
        await peer.ask(END, ending(second, COMMIT))
        assert await held(server) == [0]
        clock_of(server).advance(ms=CheckPolicy().check_after_ms)
        await server.broker.rounds.run()
        header, _ = await check(peer)
        await peer.ask(END, answering(header, COMMIT))
        assert await held(server) == []
        assert [one.body for one in visible(server)] == [b"paid", b"paid"]
    async with broker(tmp_path, kind) as server:
        assert await held(server) == []
        assert status(server.broker).state_store_disagreed == 0


async def test_while_the_database_is_away_only_half_messages_are_refused(tmp_path: Path) -> None:
    async with broker(tmp_path, "sql") as server:
        peer = await Peer.to(server.broker_address)
        first = await peer.ask(SEND, half("t1"), b"paid")
        assert await held(server) == [0]
        folder, moved = tmp_path / "elsewhere", tmp_path / "moved"
        folder.rename(moved)
        await end_connection(server)
        await eventually(lambda: status(server.broker).state_store_state == "away")
        refused = await peer.ask(SEND, half("t2"), b"paid")
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "state_store_away" in refused.remark
        # The log decides, and consumers read.
        await peer.ask(END, ending(first, COMMIT))
        await peer.ask(SEND, sending(), b"plain")
        assert [one.body for one in visible(server)] == [b"paid", b"plain"]
        page = await scrape(server)
        assert page.value("escrowmq_state_store_follows", store="sql") == 0
        assert ALERTS["state_store_away"].value(status(server.broker)) == 1
        with pytest.raises(Unavailable, match="state_store_away"):
            await server.broker.rounds.run()
        moved.rename(folder)
        await eventually(lambda: status(server.broker).state_store_state == "follows")
        assert await held(server) == []
        assert (await peer.ask(SEND, half("t3"), b"paid")).code == ResponseCode.SUCCESS
        assert await held(server) == [1]
        page = await scrape(server)
        assert page.value("escrowmq_state_store_follows", store="sql") == 1
        assert page.value("escrowmq_state_store_disagreements_total") == 0


async def test_a_broker_starts_without_the_database_and_catches_up(tmp_path: Path) -> None:
    async with broker(tmp_path, "sql") as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, half("t1"), b"paid")
    folder, moved = tmp_path / "elsewhere", tmp_path / "moved"
    folder.rename(moved)
    folder.write_text("a file in the way")
    chosen = {"state_store": "sql", "state_url": f"sqlite:///{folder / 'state.db'}"}
    async with serving(tmp_path / "data", policy=chosen) as server:
        peer = await Peer.to(server.broker_address)
        refused = await peer.ask(SEND, half("t2"), b"paid")
        assert "state_store_away" in refused.remark
        assert (await peer.ask(SEND, sending(), b"plain")).code == ResponseCode.SUCCESS
        folder.unlink()
        moved.rename(folder)
        assert await held(server) == [0]


async def lose_claim(server: Server, folder: Path) -> None:
    """Let another broker claim the store id, and the server notice it."""
    with closing(sqlite3.connect(folder / "elsewhere" / "state.db")) as database:
        database.execute("UPDATE escrowmq_state_position SET epoch = 'other', place = ''")
        database.commit()
    follower(server).follower.beat()
    server.broker.writer._schedule()
    await eventually(lambda: status(server.broker).state_store_state == "refused")


async def test_a_claimed_store_id_refuses_decisions_too(tmp_path: Path) -> None:
    async with broker(tmp_path, "sql") as server:
        peer = await Peer.to(server.broker_address)
        first = await peer.ask(SEND, half("t1"), b"paid")
        second = await peer.ask(SEND, half("t2"), b"paid")
        await peer.ask(END, ending(first, COMMIT))
        assert await held(server) == [1]
        await lose_claim(server, tmp_path)
        ended = await peer.ask(END, ending(second, COMMIT))
        assert "state_store_claimed" in ended.remark
        assert [one.body for one in visible(server)] == [b"paid"]
        # What the log has decided is answered again: the first answer may have been lost.
        assert (await peer.ask(END, ending(first, COMMIT))).code == ResponseCode.SUCCESS


async def test_a_claimed_store_id_refuses_verdicts_and_batches(tmp_path: Path) -> None:
    def batch(number: int) -> DecideBatch:
        return DecideBatch(app_id="a", query_id="q", batch_id=number, attempts=(), by="sink")

    async with broker(tmp_path, "sql") as server:
        writer = server.broker.writer
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, half("t1"), b"paid")
        await writer.submit(batch(1))
        assert await held(server) == [0]
        await lose_claim(server, tmp_path)
        verdicts = Verdicts(half_offsets=[0], commits=[True], states=[0], checks_sent=[0])
        for command in (verdicts, batch(2)):
            with pytest.raises(Unavailable, match="state_store_claimed"):
                await writer.submit(command)
        again = (await writer.submit(batch(1))).reply
        assert isinstance(again, BatchReply)
        assert again.outcome == "already_done"


async def test_timers_beat_and_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "BEAT_S", 0.01)
    monkeypatch.setattr(following, "VERIFY_S", 0.01)
    async with broker(tmp_path, "sql") as server:
        states = follower(server).follower.states
        before = states._batches  # type: ignore[attr-defined]
        await eventually(lambda: states._batches > before + 3)  # type: ignore[attr-defined]
        assert status(server.broker).state_store_disagreed == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_beat_asks_for_the_low_water_mark(kind: str, tmp_path: Path) -> None:
    async with broker(tmp_path, kind) as server:
        peer = await Peer.to(server.broker_address)
        first = await peer.ask(SEND, half("t1"), b"paid")
        await peer.ask(SEND, half("t2"), b"paid")
        await peer.ask(END, ending(first, COMMIT))
        assert await held(server) == [1]
        follower(server).follower.beat()
        server.broker.writer._schedule()
        await eventually(lambda: status(server.broker).state_store_low_water == 1)
        page = await scrape(server)
        assert page.value("escrowmq_state_store_low_water") == 1


@pytest.mark.parametrize("kind", ["table", *KINDS])
async def test_the_status_names_the_state_store(kind: str, tmp_path: Path) -> None:
    async with broker(tmp_path, kind) as server:
        peer = await Peer.to(server.broker_address)
        await eventually(lambda: status(server.broker).state_store_state == "follows")
        told = (await ask(peer, NativeCode.STATUS)).header
        assert told.state_store == kind
        assert told.state_store_state == "follows"
        assert clock_of(server) is not ManualClock()


async def listed(peer: Peer, **fields: Any) -> list[int]:  # noqa: ANN401 - of the header
    """Return half offsets of transactions, as LIST_STATE_STORE has them."""
    rows = await all_rows(peer, NativeCode.LIST_STATE_STORE, ListStateStoreHeader(**fields))
    return [row.half_offset for row in rows if row.is_head]


@pytest.mark.parametrize("kind", KINDS)
async def test_it_is_listed_page_by_page_as_it_is(kind: str, tmp_path: Path) -> None:
    async with broker(tmp_path, kind) as server:
        peer = await producer(server, "p")
        answers = [await peer.ask(SEND, half(f"t{number}"), b"paid") for number in range(7)]
        await peer.ask(END, ending(answers[2], COMMIT))
        assert await held(server) == [0, 1, 3, 4, 5, 6]
        assert await listed(peer, limit=2) == [0, 1, 3, 4, 5, 6]
        assert await listed(peer, start=3, end=5) == [3, 4]
        page = await ask(peer, NativeCode.LIST_STATE_STORE, ListStateStoreHeader())
        assert page.header.log_offset == server.broker.store.durable_end

        def corrupt(states: StateStore) -> int:
            part = follower(server).follower.ranges.part(0, with_files=False)
            return states.replace(replace(part, rows=part.rows[part.rows["half_offset"] != 4]))

        assert await follower(server).ask(corrupt) == 1
        assert await listed(peer) == [0, 1, 3, 5, 6]


async def test_what_cannot_be_listed_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path / "table") as server:
        peer = await Peer.to(server.broker_address)
        with pytest.raises(RequestRefused, match="state_store_is_table"):
            await listed(peer)
    async with broker(tmp_path / "files", "mapped") as server:
        peer = await Peer.to(server.broker_address)
        assert await held(server) == []
        with pytest.raises(ProtocolViolation, match="cursor_malformed"):
            await all_rows(peer, NativeCode.LIST_STATE_STORE, ListStateStoreHeader(cursor="x"))
    async with broker(tmp_path, "sql") as server:
        peer = await Peer.to(server.broker_address)
        assert await held(server) == []
        (tmp_path / "elsewhere").rename(tmp_path / "moved")
        await end_connection(server)
        await eventually(lambda: status(server.broker).state_store_state == "away")
        with pytest.raises(Unavailable, match="state_store_away"):
            await listed(peer)
