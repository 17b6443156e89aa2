"""A broker with a state store: scans go to it, and half messages wait for it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from escrowmq.broker.native.status import status
from escrowmq.broker.server import Server
from escrowmq.broker.watch.alert_rules import ALERTS
from escrowmq.broker.write import following
from escrowmq.broker.write.following import Following
from escrowmq.model.errors import ProtocolViolation, RequestRefused, Unavailable
from escrowmq.protocol.native.comparisons import ListStateStoreHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.codes import ResponseCode
from escrowmq.testing.clock import ManualClock
from escrowmq.transaction.commands import BatchReply, DecideBatch, Verdicts
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.state_store import StateBatch, StatesLostTrack, StateStore
from tests.unit.broker.asking import answering, check, producer
from tests.unit.broker.native_peer import all_rows, ask
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

KINDS = ("mapped", "sql")
DEADLINE_S = 20


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run rounds only when the test says so, and do not rest long."""
    monkeypatch.setattr("escrowmq.broker.server.CHECK_S", 3_600.0)
    monkeypatch.setattr(following, "RETRY_S", 0.02)


@asynccontextmanager
async def broker(folder: Path, kind: str, **policy: Any) -> AsyncIterator[Server]:  # noqa: ANN401
    url = f"sqlite:///{folder / 'elsewhere' / 'state.db'}" if kind == "sql" else ""
    (folder / "elsewhere").mkdir(parents=True, exist_ok=True)
    chosen = {"checked_by": "broker", "state_store": kind, "state_url": url, **policy}
    async with serving(folder / "data", policy=chosen, broker={"http_port": 0}) as server:
        yield server


def follower(server: Server) -> Following:
    found = server.broker.writer.following
    assert found is not None
    return found


async def held(server: Server) -> list[int]:
    """Return the undecided half offsets, as the state store has them."""
    led = follower(server)
    await eventually(lambda: led.follower.is_equal and not led.follower.lag_rows)

    def snapshot(states: StateStore) -> list[int]:
        rows: list[int] = states.snapshot(0, NEVER)["half_offset"].tolist()
        return rows

    return await led.ask(snapshot)


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
        follower(server).follower.states._database.close()  # type: ignore[attr-defined]
        follower(server).follower.beat()
        server.broker.writer._schedule()
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


async def test_a_state_store_that_is_too_slow_refuses_half_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LAG_ROWS_MAX", -1)
    async with broker(tmp_path, "mapped") as server:
        peer = await Peer.to(server.broker_address)
        refused = await peer.ask(SEND, half("t1"), b"paid")
        assert "state_store_behind" in refused.remark


async def test_an_unknown_error_keeps_it_away_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> int:
        raise ValueError("a bug")

    async with broker(tmp_path, "mapped") as server:
        peer = await Peer.to(server.broker_address)
        states = follower(server).follower.states
        with monkeypatch.context() as failing:
            failing.setattr(states, "follow", fail)
            await peer.ask(SEND, half("t1"), b"paid")
            await eventually(lambda: status(server.broker).state_store_state == "away")
        assert await held(server) == [0]
        assert "state_store_failed" in caplog.text
        assert "a bug" in caplog.text


async def test_a_scan_that_loses_track_beside_a_batch_stops_nothing(tmp_path: Path) -> None:
    scanning, may_fail = threading.Event(), threading.Event()

    def lose(_: StateStore) -> int:
        scanning.set()
        assert may_fail.wait(DEADLINE_S)
        raise StatesLostTrack

    async with broker(tmp_path, "sql") as server:
        peer = await Peer.to(server.broker_address)
        led = follower(server)
        await held(server)
        scan = asyncio.create_task(led.ask(lose))
        await eventually(scanning.is_set)
        # The batch waits behind the scan.
        await peer.ask(SEND, half("t1"), b"paid")
        await eventually(lambda: led._is_busy)
        may_fail.set()
        with pytest.raises(Unavailable, match="during a scan"):
            await scan
        assert await held_again(server) == [0]
        assert status(server.broker).state_store_disagreed == 0


async def test_a_bug_in_the_follower_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker(tmp_path, "sql") as server:
        peer = await Peer.to(server.broker_address)
        led = follower(server)
        await held(server)
        with monkeypatch.context() as failing:
            failing.setattr(led.follower, "_followed", None)
            await peer.ask(SEND, half("t1"), b"paid")
            await eventually(lambda: status(server.broker).state_store_state == "away")
        assert "not callable" in caplog.text
        assert await held_again(server) == [0]


async def test_a_state_store_that_does_not_answer_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "SILENT_S", 0.02)
    may_answer = threading.Event()
    async with broker(tmp_path, "mapped") as server:
        peer = await Peer.to(server.broker_address)
        states = follower(server).follower.states
        follow = states.follow

        def slow(batch: StateBatch) -> int:
            assert may_answer.wait(DEADLINE_S)
            return follow(batch)

        await held(server)
        monkeypatch.setattr(states, "follow", slow)
        first = await peer.ask(SEND, half("t1"), b"paid")
        await eventually(lambda: status(server.broker).state_store_state == "away")
        refused = await peer.ask(SEND, half("t2"), b"paid")
        assert "not answered" in refused.remark
        await peer.ask(END, ending(first, COMMIT))
        may_answer.set()
        await eventually(lambda: status(server.broker).state_store_state == "follows")
        assert await held(server) == []


async def test_a_stop_does_not_wait_for_a_state_store_that_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following, "CLOSE_S", 0.02)
    may_end = threading.Event()

    def stick(_: object) -> int:
        may_end.wait(DEADLINE_S)
        raise Unavailable("state_store_away", "late")

    async with broker(tmp_path, "mapped") as server:
        peer = await Peer.to(server.broker_address)
        led = follower(server)
        await held(server)
        monkeypatch.setattr(led.follower.states, "follow", stick)
        await peer.ask(SEND, half("t1"), b"paid")
        await eventually(lambda: led._is_busy)
    assert "state_store_stuck" in caplog.text
    may_end.set()
    await eventually(lambda: not led._is_busy)


async def test_scans_wait_until_it_has_caught_up(tmp_path: Path) -> None:
    async with broker(tmp_path, "mapped") as server:
        led = follower(server)
        await held(server)
        led.follower._must_replace = True
        with pytest.raises(Unavailable, match="brought up"):
            await led.ask(lambda states: states.low_water())
        led._go_on()

        def fail(_: StateStore) -> int:
            raise Unavailable("state_store_away", "gone")

        await held(server)
        with pytest.raises(Unavailable, match="during a scan"):
            await led.ask(fail)
        assert await held_again(server) == []


async def held_again(server: Server) -> list[int]:
    """Return the undecided half offsets once the next work has succeeded."""
    follower(server).follower.beat()
    server.broker.writer._schedule()
    await eventually(lambda: status(server.broker).state_store_state == "follows")
    return await held(server)


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
        follower(server).follower.states._database.close()  # type: ignore[attr-defined]
        follower(server).follower.beat()
        server.broker.writer._schedule()
        await eventually(lambda: status(server.broker).state_store_state == "away")
        with pytest.raises(Unavailable, match="state_store_away"):
            await listed(peer)
