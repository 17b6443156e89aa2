"""A full disk: messages are refused first, then decisions, and reads go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from escrowmq.broker.server import Server
from escrowmq.model.errors import Unavailable
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.frames import RemotingFrame
from escrowmq.store.disk.disk import OsDisk
from escrowmq.testing.clock import ManualClock
from tests.unit.broker.test_limits import pulling
from tests.unit.broker.wire import (
    COMMIT,
    END,
    SEND,
    T0,
    Peer,
    clock_of,
    ending,
    eventually,
    half,
    sending,
    serving,
    visible,
)

MIB = 1024 * 1024
MIN = 100 * MIB


@pytest.fixture
def set_free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets the free bytes of every disk; the reserve is taken from them."""

    def set_free(free_bytes: int) -> None:
        monkeypatch.setattr(
            OsDisk, "free_bytes", lambda disk: max(0, free_bytes - disk.allocated("reserve"))
        )

    set_free(10 * MIN)
    return set_free


def is_refused(answer: RemotingFrame) -> bool:
    return answer.code == ResponseCode.SERVICE_NOT_AVAILABLE and "disk_full" in answer.remark


async def told(server: Server, level: str) -> None:
    """Wait until the broker has noticed this level by itself."""
    await eventually(lambda: server.broker.store.space.level.name == level)


async def test_a_full_disk_refuses_and_serves_until_there_is_room(
    tmp_path: Path, set_free: Callable[[int], None]
) -> None:
    async with serving(tmp_path, store={"free_bytes_min": MIN}) as server:
        peer = await Peer.to(server.broker_address)
        first, second = [await peer.ask(SEND, half(f"k{number}"), b"held") for number in range(2)]
        assert (await peer.ask(SEND, sending(), b"stored")).code == ResponseCode.SUCCESS
        # This pull makes the group now; later there is no room for its record.
        await peer.ask(RequestCode.PULL_MESSAGE, pulling())

        set_free(MIN - 1)
        await told(server, "NO_MESSAGES")
        assert is_refused(await peer.ask(SEND, sending(), b"too much"))
        assert is_refused(await peer.ask(SEND, half("k9"), b"too much"))
        assert (await peer.ask(END, ending(first, COMMIT))).code == ResponseCode.SUCCESS

        set_free(0)
        await told(server, "NOTHING")
        assert is_refused(await peer.ask(END, ending(second, COMMIT)))
        pulled = await peer.ask(RequestCode.PULL_MESSAGE, pulling())
        assert (pulled.code, len(visible(server))) == (ResponseCode.SUCCESS, 2)

        set_free(10 * MIN)
        await told(server, "ALL")
        assert (await peer.ask(END, ending(second, COMMIT))).code == ResponseCode.SUCCESS
        assert (await peer.ask(SEND, sending(), b"again")).code == ResponseCode.SUCCESS
        assert [one.body for one in visible(server)] == [b"stored", b"held", b"held", b"again"]


async def test_bytes_sent_between_two_measurements_count(
    tmp_path: Path, set_free: Callable[[int], None]
) -> None:
    async with serving(tmp_path, store={"free_bytes_min": MIN}) as server:
        peer = await Peer.to(server.broker_address)
        set_free(MIN + MIB)
        server.broker.writer.look_at_space()
        assert (await peer.ask(SEND, sending(), bytes(MIB // 2))).code == ResponseCode.SUCCESS
        # The bytes counted since the last look make the broker look at the disk again.
        set_free(MIN - 1)
        assert is_refused(await peer.ask(SEND, sending(), bytes(MIB // 2)))


async def test_it_stops_and_starts_on_a_full_disk(
    tmp_path: Path, set_free: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, store={"free_bytes_min": MIN}) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(), b"kept")
        set_free(0)

        def full(_changes: object) -> None:
            raise Unavailable("meta_full")

        monkeypatch.setattr(server.broker.meta, "write", full)
        await server._flush_offsets()
    # One failure is from the flush above, two are from before and after the last checkpoint.
    assert server.limits.counts["offsets_not_written"] == 3
    async with serving(tmp_path, store={"free_bytes_min": MIN}) as server:
        assert [one.body for one in visible(server)] == [b"kept"]
        peer = await Peer.to(server.broker_address)
        assert is_refused(await peer.ask(SEND, sending(), b"no"))
        set_free(10 * MIN)
        await told(server, "ALL")
        assert (await peer.ask(SEND, sending(), b"yes")).code == ResponseCode.SUCCESS


async def test_store_time_moves_on_a_disk_that_takes_no_decisions(
    tmp_path: Path, set_free: Callable[[int], None]
) -> None:
    """Retention deletes nothing until store time moves, so there would never be room."""
    async with serving(tmp_path, store={"free_bytes_min": MIN}) as server:
        set_free(MIN // 2 - 1)
        await told(server, "NO_DECISIONS")
        clock = clock_of(server)
        clock.jump(seconds=86_400)
        await server._look_at_clock()
        assert server.broker.clock.now_ms() == clock.now_ms()


async def test_a_start_without_room_for_a_record_goes_on_with_the_time_it_had(
    tmp_path: Path, set_free: Callable[[int], None]
) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock, store={"free_bytes_min": MIN}):
        pass
    clock.power_off(seconds=86_400)
    set_free(MIN // 4 - 1)
    async with serving(tmp_path, clock, store={"free_bytes_min": MIN}) as server:
        assert server.broker.clock.now_ms() < clock.now_ms()
        assert not server.broker.clock.may_delete
        set_free(10 * MIN)
        await told(server, "ALL")
        await server._look_at_clock()
        assert server.broker.clock.now_ms() == clock.now_ms()
