"""The machine that the broker runs on: its processes, its clock, its disk and its backups."""

from __future__ import annotations

import asyncio
import contextlib
import io
import shutil
from pathlib import Path
from random import Random
from typing import Any

from escrowmq.broker.config import BrokerConfig, TopicsConfig, WriterConfig
from escrowmq.cli.data import backup_commands
from escrowmq.model.limits_config import LimitsConfig
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.log.commit_log import DIRECTORY as LOG
from escrowmq.store.repair.backup import META, STORE
from escrowmq.testing.clock import ManualClock
from escrowmq.testing.watched_server import WatchedServer
from escrowmq.transaction.policy import CheckPolicy
from tests.crash.year.model import DAY_MS, HOUR_MS, RETENTION_MS
from tests.crash.year.talk import Talk
from tests.unit.broker.wire import Peer

START_MS = 1_700_000_000_000
MIB = 1024 * 1024
FREE_BYTES_MIN = 64 * MIB
PLENTY = 1024 * MIB
#: Too little for messages, but enough for decisions.
FULL = FREE_BYTES_MIN * 7 // 10
#: Names that no client uses expire after this time.
UNUSED_EXPIRE_MS = 7 * DAY_MS
TORN_BYTES_MAX = 200


def settings() -> dict[str, Any]:
    """Sections of the broker's configuration; sizes are small, so that files come and go."""
    return {
        "broker": BrokerConfig(port=0, name_port=0, grpc_port=-1),
        "store": StoreConfig(
            durability="os",
            segment_bytes_max=128 * 1024,
            checkpoint_bytes=256 * 1024,
            retention_ms=RETENTION_MS,
            copy_after_ms=HOUR_MS,
            free_bytes_min=FREE_BYTES_MIN,
            chunk_rows=256,
        ),
        "policy": CheckPolicy(),
        "topics": TopicsConfig(queue_count=1),
        "writer": WriterConfig(),
        "limits": LimitsConfig(unused_expire_ms=UNUSED_EXPIRE_MS),
    }


class Machine:
    """The broker's processes, clock, disk and backups. Use it from one event loop only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(START_MS)
        self._free_bytes = PLENTY
        self._directories = 0
        self.data = self._next_directory("data")
        self._server: WatchedServer | None = None
        self._peers: list[Peer] = []
        self._real_free_bytes = OsDisk.free_bytes

    def _next_directory(self, name: str) -> Path:
        self._directories += 1
        return self.folder / f"{name}-{self._directories}"

    # Processes.

    @property
    def server(self) -> WatchedServer:
        """The broker's process."""
        assert self._server is not None
        return self._server

    async def start(self) -> None:
        """Start the broker."""
        machine = self
        OsDisk.free_bytes = lambda _disk: machine._free_bytes  # type: ignore[method-assign,assignment]
        server = WatchedServer(self.data, self.clock, **settings())
        await server.start()
        self._server = server

    async def hang_up(self) -> None:
        """Close all connections to the broker."""
        while self._peers:
            await self._peers.pop().closed()

    async def stop(self) -> None:
        """Stop the broker cleanly."""
        await self.hang_up()
        server, self._server = self._server, None
        if server is not None:
            await server.stop()

    async def restart(self) -> None:
        """Stop and start the broker."""
        await self.stop()
        await self.start()

    async def kill(self, rng: Random, *, is_torn: bool) -> None:
        """Kill the process: only what it had written to the kernel remains."""
        left = self._next_directory("data")
        await self.server.broker.writer.alone(lambda _store: self._copy(left))
        await self.stop()
        await asyncio.to_thread(shutil.rmtree, self.data)
        self.data = left
        if is_torn:
            last = max((left / STORE / LOG).iterdir())
            torn = rng.randbytes(rng.randrange(1, TORN_BYTES_MAX))
            with last.open("ab") as segment:
                segment.write(torn)
        await self.start()

    def _copy(self, target: Path) -> None:
        shutil.copytree(self.data, target)

    async def talk(self) -> Talk:
        """Open a new connection to the broker."""
        peer = await Peer.to(self.server.broker_address)
        self._peers.append(peer)
        return Talk(peer)

    # Time.

    async def pass_time(self, ms: int) -> None:
        """Advance the clock, and let the broker do what became due."""
        self.clock.advance(ms=ms)
        await self.catch_up()

    async def catch_up(self) -> None:
        """Let the broker do what is due."""
        await self.server.catch_up()
        await self.server.broker.expiring.run()
        await self.server.until_published()

    def jump(self, ms: int) -> None:
        """Make the wall clock wrong, or correct it."""
        self.clock.synchronized = not self.clock.synchronized
        self.clock.jump(ms=ms)

    def suspend(self, ms: int) -> None:
        """Suspend the machine."""
        self.clock.suspend(seconds=ms // 1_000)

    def power_off(self, ms: int) -> None:
        """Turn the machine off for a while; the broker is stopped."""
        self.clock.power_off(seconds=ms // 1_000)

    # The disk.

    def fill_disk(self, *, is_full: bool) -> None:
        """Set the free space: nearly none, or plenty."""
        self._free_bytes = FULL if is_full else PLENTY
        self.server.broker.writer.look_at_space()

    async def lose_meta(self, rng: Random) -> None:
        """Stop the broker, delete or damage ``meta.db``, and start it again."""
        await self.stop()
        path = self.data / META
        if rng.random() < 0.5:
            path.unlink()
        else:
            data = bytearray(path.read_bytes())
            for _ in range(50):
                data[rng.randrange(len(data))] ^= 1 + rng.randrange(255)
            path.write_bytes(data)
        await self.start()

    # Backups.

    async def back_up(self) -> Path:
        """Back up the running broker with its backup command."""
        directory = self._next_directory("backup")
        address = self.server.broker_address
        await asyncio.to_thread(_quietly, backup_commands.backup, directory, address)
        return directory

    async def restore(self, backup: Path) -> None:
        """Replace the broker's data with a backup, and delete the backup."""
        await self.stop()
        data = self._next_directory("data")
        await asyncio.to_thread(_quietly, backup_commands.restore, backup, data=data)
        for old in (self.data, backup):
            await asyncio.to_thread(shutil.rmtree, old)
        self.data = data
        await self.start()

    async def close(self) -> None:
        """Stop everything, and undo the patch of the disk."""
        try:
            await self.stop()
        finally:
            OsDisk.free_bytes = self._real_free_bytes  # type: ignore[method-assign]


def _quietly(command: Any, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - commands
    with contextlib.redirect_stdout(io.StringIO()):
        command(*arguments, **options)
