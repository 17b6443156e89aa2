"""Scheduled backups: when they run, how they are verified, and which are kept."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from escrowmq.broker.config import TlsConfig
from escrowmq.broker.periodic.backup_schedule import (
    DAY_MS,
    OVERDUE_MS,
    RETRY_MS,
    BackupConfig,
    due_at_ms,
    overdue_ms,
)
from escrowmq.broker.periodic.scheduled_backups import (
    VERIFIED,
    BackupOrder,
    ScheduledBackups,
    Verified,
    file_name,
    verified_backups,
)
from escrowmq.cli.data import backup_job
from escrowmq.cli.run.process_options import trust_served_certificate
from escrowmq.model.errors import RequestRefused, StoreCorrupt
from escrowmq.model.tls import VARIABLES
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.recovery import format as formats
from escrowmq.store.repair.backup import STORE, Room
from escrowmq.testing.clock import ManualClock
from tests.unit.broker.native_peer import ask, sent
from tests.unit.broker.wire import BACKUP_COMMAND, T0, Peer, eventually, serving

MINUTE_MS = 60_000
WAIT_S = 20


def due(config: BackupConfig, good: int = 0, failed: int = 0, started: int = 0) -> int:
    return due_at_ms(config, last_good_ms=good, last_failed_ms=failed, started_ms=started)


def test_the_first_backup_comes_at_once_and_the_next_after_the_interval() -> None:
    config = BackupConfig(directory="d", interval_ms=DAY_MS)
    assert due(config, started=5) == 5
    assert due(config, good=100, started=5) == 100 + DAY_MS


def test_a_failed_one_is_tried_again_soon_and_not_at_once() -> None:
    config = BackupConfig(directory="d", interval_ms=DAY_MS)
    assert due(config, failed=50, started=5) == 50 + RETRY_MS
    assert due(config, good=10, failed=DAY_MS + 20) == DAY_MS + 20 + RETRY_MS
    # A failure before the last good backup does not count.
    assert due(config, good=100, failed=50) == 100 + DAY_MS
    often = BackupConfig(directory="d", interval_ms=MINUTE_MS)
    assert due(often, failed=50) == 50 + MINUTE_MS


def test_a_daily_one_comes_at_its_time_in_utc() -> None:
    config = BackupConfig(directory="d", daily_at="03:30")
    at_ms = (3 * 60 + 30) * MINUTE_MS
    assert due(config, started=1) == at_ms
    assert due(config, started=at_ms) == DAY_MS + at_ms
    assert due(config, good=at_ms + 5) == DAY_MS + at_ms


def test_a_good_one_is_missed_after_two_periods() -> None:
    config = BackupConfig(directory="d", interval_ms=DAY_MS)
    limit = 100 + 2 * DAY_MS + OVERDUE_MS
    assert overdue_ms(config, last_good_ms=100, started_ms=0, now_ms=limit) == 0
    assert overdue_ms(config, last_good_ms=100, started_ms=0, now_ms=limit + 7) == 7
    assert overdue_ms(BackupConfig(), last_good_ms=0, started_ms=0, now_ms=limit) == 0


@pytest.mark.parametrize("fields", [{"daily_at": "24:00"}, {"daily_at": "3:30"}, {"keep": 0}])
def test_a_setting_that_means_nothing_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused, match="bad_config"):
        BackupConfig(**fields)


async def test_a_broker_makes_checks_and_prunes_backups_by_itself(tmp_path: Path) -> None:
    """A child process runs one whole round; a restarted broker finds the last good backup."""
    directory = tmp_path / "backups"
    settings: dict[str, Any] = {
        "backup": {"directory": str(directory), "interval_ms": DAY_MS, "keep": 1}
    }
    (directory / "broker-a-20200101T000000Z").mkdir(parents=True)
    old = Verified(made_at_ms=1, log_end=0, bytes=0, took_ms=0)
    (directory / "broker-a-20200101T000000Z" / VERIFIED).write_bytes(msgspec.json.encode(old))
    (directory / "broker-a-20200102T000000Z.unfinished").mkdir()
    (directory / "broker-b-20200101T000000Z").mkdir()
    (directory / "notes").mkdir()
    async with serving(tmp_path / "data", **settings) as server:
        peer = await Peer.to(server.broker_address)
        await ask(peer, NativeCode.SEND_MANY, rows=[sent()] * 5)
        while not (told := (await ask(peer, NativeCode.STATUS)).header).backup_last_good_bytes:
            await asyncio.wait({asyncio.ensure_future(peer_tick(peer))})
        assert told.backup_failures_in_a_row == 0, told.backup_last_error
        path = Path(told.backup_last_good)
        assert told.backup_last_good_at_ms == T0
        assert told.backup_next_at_ms == T0 + DAY_MS
    assert sorted(one.name for one in directory.iterdir()) == [
        path.name,
        "broker-b-20200101T000000Z",
        "notes",
    ]
    assert json.loads((path / VERIFIED).read_bytes())["log_end"] > 0
    async with serving(tmp_path / "data", clock=ManualClock(T0 + 5), **settings) as server:
        peer = await Peer.to(server.broker_address)
        told = (await ask(peer, NativeCode.STATUS)).header
        assert (told.backup, told.backup_last_good_at_ms) == ("idle", T0)


async def test_backups_reach_a_broker_that_requires_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `escrowmq serve` sets it for the processes that it starts.
    monkeypatch.setenv(VARIABLES["ca_file"], "")
    trust_served_certificate(TlsConfig(mode="required"), tmp_path / "data")
    settings: dict[str, Any] = {
        "backup": {"directory": str(tmp_path / "backups"), "interval_ms": 60_000},
        "tls": {"mode": "required"},
    }
    async with serving(tmp_path / "data", **settings) as server:
        backups = server.broker.vitals.backups
        assert backups is not None
        await eventually(lambda: backups.said.last_good or backups.said.last_error)
        assert backups.said.last_error == ""


async def test_a_backup_that_would_fill_the_brokers_disk_is_not_made(tmp_path: Path) -> None:
    """More bytes must stay free than are free, so a backup on this disk is refused."""
    directory = tmp_path / "backups"
    free_bytes = OsDisk(tmp_path).free_bytes()
    settings: dict[str, Any] = {
        "backup": {"directory": str(directory)},
        "store": {"free_bytes_min": free_bytes * 2},
    }
    async with serving(tmp_path / "data", **settings) as server:
        peer = await Peer.to(server.broker_address)
        while not (told := (await ask(peer, NativeCode.STATUS)).header).backup_failures_in_a_row:
            await asyncio.wait({asyncio.ensure_future(peer_tick(peer))})
        assert told.backup_last_error.startswith("backup_no_room: make room")
        assert f"free_bytes_min={free_bytes * 2}" in told.backup_last_error
    assert list(directory.iterdir()) == []


async def peer_tick(peer: Peer) -> None:
    await ask(peer, NativeCode.STATUS)


class Clock:
    now_ms = T0

    def __call__(self) -> int:
        return self.now_ms


def backups(command: tuple[str, ...], **fields: Any) -> ScheduledBackups:  # noqa: ANN401
    config = BackupConfig(directory="/nowhere", **fields)
    return ScheduledBackups(config, command, broker="b", now_ms=Clock())


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ('print(\'{"error": "disk is gone"}\')', "disk is gone"),
        ("raise SystemExit(9)", "the backup's process ended with 9"),
        ("print('no json')", "JSON is malformed"),
        ("print('{}')", "printed no result"),
    ],
)
async def test_a_failure_is_kept_with_its_reason(program: str, why: str) -> None:
    failing = backups((sys.executable, "-c", program))
    await failing.run("127.0.0.1:1")
    await failing.run("127.0.0.1:1")
    said = failing.said
    assert (said.state, said.failures_in_a_row, said.last_failed_at_ms) == ("idle", 2, T0)
    assert why in said.last_error
    assert failing.next_at_ms == T0 + RETRY_MS


async def test_one_that_takes_too_long_is_ended() -> None:
    slow = backups((sys.executable, "-c", "import time; time.sleep(600)"), timeout_ms=1_000)
    await slow.run("127.0.0.1:1")
    assert "longer than backup.timeout_ms" in slow.said.last_error


async def test_stopping_ends_a_backup_that_runs_and_two_never_run_at_once() -> None:
    slow = backups((sys.executable, "-c", "import time; time.sleep(600)"))
    await slow.look("127.0.0.1:1")
    await slow.look("127.0.0.1:1")
    while slow._child is None:
        await asyncio.wait({asyncio.ensure_future(slow.look("127.0.0.1:1"))})
    child = slow._child
    assert slow.said.state == "running"
    await slow.stop()
    assert child.returncode is not None
    assert slow.said.state == "idle"


def order(directory: Path, at_ms: int = T0, keep: int = 2) -> BackupOrder:
    return BackupOrder(
        address="127.0.0.1:1", broker="a/b", directory=str(directory), keep=keep, made_at_ms=at_ms
    )


def test_a_backup_that_cannot_be_made_leaves_nothing_and_deletes_no_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = tmp_path / "a_b-20200101T000000Z"
    good.mkdir()
    verified = Verified(made_at_ms=1, log_end=0, bytes=0, took_ms=0)
    (good / VERIFIED).write_bytes(msgspec.json.encode(verified))

    def back_up(_address: str, target: Path) -> tuple[object, Room]:
        target.mkdir()
        return object(), Room()

    def damaged(_backup: Path, restored: Path, _room: Room) -> None:
        restored.mkdir()
        raise StoreCorrupt("store_damaged", "damaged")

    monkeypatch.setattr(backup_job, "_back_up", back_up)
    monkeypatch.setattr(backup_job, "_check", damaged)
    with pytest.raises(StoreCorrupt):
        backup_job.make(order(tmp_path, keep=1))
    assert [one.name for one in tmp_path.iterdir()] == [good.name]
    assert file_name("a/b") == "a_b"


def test_only_good_backups_of_this_broker_count_and_the_oldest_go(tmp_path: Path) -> None:
    for number, name in enumerate(("1", "2", "3")):
        path = tmp_path / f"a_b-2020010{name}T000000Z"
        path.mkdir()
        verified = Verified(made_at_ms=number, log_end=0, bytes=0, took_ms=0)
        (path / VERIFIED).write_bytes(msgspec.json.encode(verified))
    (tmp_path / "a_b-20200104T000000Z").mkdir()
    (tmp_path / "a_b-20200105T000000Z").mkdir()
    (tmp_path / "a_b-20200105T000000Z" / VERIFIED).write_text("no JSON")
    (tmp_path / "x-a_b-20200101T000000Z").mkdir()
    assert [path.name for path, _ in verified_backups(tmp_path, "a/b")] == [
        "a_b-20200101T000000Z",
        "a_b-20200102T000000Z",
        "a_b-20200103T000000Z",
    ]
    newest = tmp_path / "a_b-20200103T000000Z"
    assert backup_job._prune(tmp_path, order(tmp_path), newest) == ["a_b-20200101T000000Z"]
    assert verified_backups(tmp_path / "none", "a/b") == []


def backup_of(directory: Path, day: int, made_at_ms: int, seed: int) -> Path:
    path = directory / f"a_b-202001{day:02}T000000Z"
    disk = OsDisk(path / STORE)
    disk.make_directory("")
    disk_format = formats.chosen(seed, 64)
    (path / STORE / formats.PATH).write_bytes(msgspec.json.encode(disk_format))
    verified = Verified(made_at_ms=made_at_ms, log_end=0, bytes=0, took_ms=0)
    (path / VERIFIED).write_bytes(msgspec.json.encode(verified))
    return path


def test_the_backup_just_made_is_kept_although_others_seem_newer(tmp_path: Path) -> None:
    backup_of(tmp_path, 30, made_at_ms=2 * T0, seed=1)
    made = backup_of(tmp_path, 1, made_at_ms=T0, seed=1)
    wanted = msgspec.structs.replace(order(tmp_path, keep=1), seed=1)
    assert backup_job._prune(tmp_path, wanted, made) == ["a_b-20200130T000000Z"]
    assert [one.name for one in tmp_path.iterdir()] == [made.name]


async def test_a_backup_from_the_future_does_not_put_off_the_next(tmp_path: Path) -> None:
    backup_of(tmp_path, 30, made_at_ms=2 * T0, seed=1)
    config = BackupConfig(directory=str(tmp_path))
    found = ScheduledBackups(config, (), broker="a/b", now_ms=Clock(), seed=1)
    await found.find_last()
    assert (found.said.last_good, found.next_at_ms) == ("", T0)


def test_a_broker_of_the_same_name_touches_no_backup_of_another_store(tmp_path: Path) -> None:
    theirs = backup_of(tmp_path, 1, made_at_ms=1, seed=1)
    running = backup_of(tmp_path, 2, made_at_ms=2, seed=1)
    running = running.rename(running.with_name(running.name + backup_job.UNFINISHED))
    left = backup_of(tmp_path, 3, made_at_ms=3, seed=2)
    left.rename(left.with_name(left.name + backup_job.UNFINISHED))
    ours = backup_of(tmp_path, 4, made_at_ms=4, seed=2)
    wanted = msgspec.structs.replace(order(tmp_path, keep=1), seed=2)
    backup_job._clean(tmp_path, wanted)
    assert backup_job._prune(tmp_path, wanted, ours) == []
    assert sorted(tmp_path.iterdir()) == [theirs, running, ours]


async def test_one_that_is_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    """The real process is ended while it waits for a broker that does not answer."""
    silent = socket.create_server(("127.0.0.1", 0))
    silent.settimeout(WAIT_S)
    left = tmp_path / "b-20200101T000000Z.unfinished"
    left.mkdir()
    config = BackupConfig(directory=str(tmp_path))
    job = ScheduledBackups(config, BACKUP_COMMAND, broker="b", now_ms=Clock())
    await job.look(f"127.0.0.1:{silent.getsockname()[1]}")
    asked, _ = await asyncio.to_thread(silent.accept)
    # This directory stands for an unfinished copy.
    left.mkdir()
    await job.stop()
    assert not left.exists()
    asked.close()
    silent.close()
