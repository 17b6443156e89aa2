"""Scheduled backups of a broker: a child process copies, restores and checks.

The child (``escrowmq.cli.data.backup_job``) runs in its own process at a lower priority. The event
loop only starts it, waits for it without blocking, and keeps its result.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from escrowmq.broker.periodic.backup_schedule import BackupConfig, due_at_ms, overdue_ms
from escrowmq.model.errors import EscrowError
from escrowmq.model.event_log import event_log
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.recovery import format as formats
from escrowmq.store.repair.backup import STORE

log = event_log(__name__)

VERIFIED = "verified.json"
"""File in a backup; it exists once the backup was restored and checked."""

SAID_BYTES_MAX = 65_536
ERROR_CHARS_MAX = 500
END_S = 5.0
_STAMP = re.compile(r"(?P<broker>.+)-[0-9]{8}T[0-9]{6}Z")


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the check of a backup; the content of ``verified.json``."""

    #: Store time when the backup began.
    made_at_ms: int
    log_end: int
    bytes: int
    took_ms: int


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """The last line that the child prints, as JSON."""

    #: Where the backup is; empty if there is none.
    path: str = ""
    verified: Verified | None = None
    removed: list[str] = []
    error: str = ""


class BackupState(msgspec.Struct, kw_only=True):
    """State of the scheduled backups."""

    #: `off`, `idle` or `running`.
    state: str = "off"
    last_good_at_ms: int = 0
    last_good: str = ""
    last_good_bytes: int = 0
    last_failed_at_ms: int = 0
    failures_in_a_row: int = 0
    last_error: str = ""


def file_name(broker: str) -> str:
    """Return a broker's name with only characters that are safe in a directory name."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", broker) or "broker"


def is_of_other_store(backup: Path, seed: int | None) -> bool:
    """Return whether a backup, complete or not, is of another store than the one with this seed.

    Two brokers may have the same name, which is part of the names of their backups.
    """
    if seed is None:
        return False
    try:
        return formats.read(OsDisk(backup / STORE, read_only=True)).seed != seed
    except (OSError, EscrowError):
        return False


def verified_backups(
    directory: Path, broker: str, seed: int | None = None
) -> list[tuple[Path, Verified]]:
    """Return the good backups of this broker, oldest first.

    With a seed, only backups of the store with this seed count.
    """
    found = []
    with contextlib.suppress(OSError):
        for path in sorted(directory.iterdir()):
            match = _STAMP.fullmatch(path.name)
            if match is None or match["broker"] != file_name(broker):
                continue
            if is_of_other_store(path, seed):
                continue
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                said = (path / VERIFIED).read_bytes()
                found.append((path, msgspec.json.decode(said, type=Verified)))
    return sorted(found, key=lambda one: one[1].made_at_ms)


@dataclass(eq=False)
class ScheduledBackups:
    """Makes the scheduled backups of one broker. Use it from one event loop only."""

    config: BackupConfig
    #: Command line of the child, without its last argument.
    command: Sequence[str]
    broker: str
    now_ms: Callable[[], int]
    #: The store's seed, which its backups contain.
    seed: int | None = None
    _child: asyncio.subprocess.Process | None = field(default=None, init=False)
    _running: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._started_ms = self.now_ms()
        self.said = BackupState(state="idle" if self.config.is_on else "off")

    @property
    def next_at_ms(self) -> int:
        """When the next backup is due; 0 if backups are off."""
        if not self.config.is_on:
            return 0
        return due_at_ms(
            self.config,
            last_good_ms=self.said.last_good_at_ms,
            last_failed_ms=self.said.last_failed_at_ms,
            started_ms=self._started_ms,
        )

    @property
    def overdue_ms(self) -> int:
        """For how long a good backup has been overdue."""
        return overdue_ms(
            self.config,
            last_good_ms=self.said.last_good_at_ms,
            started_ms=self._started_ms,
            now_ms=self.now_ms(),
        )

    async def find_last(self) -> None:
        """Find the last good backup, which an earlier process may have made."""
        if self.config.is_on:
            directory = Path(self.config.directory)
            found = await asyncio.to_thread(verified_backups, directory, self.broker, self.seed)
            # A backup from the future, made under a wrong clock, would delay all others.
            past = [one for one in found if one[1].made_at_ms <= self._started_ms]
            if past:
                self._note_good(*past[-1])

    async def look(self, address: str) -> None:
        """Start a backup of the broker at this address if one is due and none is running."""
        if self.config.is_on and self._running is None and self.now_ms() >= self.next_at_ms:
            self._running = asyncio.ensure_future(self.run(address))
            self._running.add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._running = None

    async def run(self, address: str) -> None:
        """Make one backup, and note its result."""
        began_ms = self.now_ms()
        self.said.state = "running"
        try:
            result = await self._run_child(address, began_ms)
        except Exception as error:  # noqa: BLE001 - a backup must not end the broker
            result = JobResult(error=repr(error))
        finally:
            self.said.state = "idle"
        if result.verified is not None and not result.error:
            self._note_good(Path(result.path), result.verified)
            log.info("backup_made", extra={"path": result.path, "removed": result.removed})
            return
        self.said.last_failed_at_ms = self.now_ms()
        self.said.failures_in_a_row += 1
        self.said.last_error = (result.error or "the backup's process printed no result")[
            :ERROR_CHARS_MAX
        ]
        log.error("backup_failed", extra={"why": self.said.last_error})

    def _note_good(self, path: Path, verified: Verified) -> None:
        self.said.last_good_at_ms = verified.made_at_ms
        self.said.last_good = str(path)
        self.said.last_good_bytes = verified.bytes
        self.said.failures_in_a_row = 0
        self.said.last_error = ""

    async def _run_child(self, address: str, began_ms: int) -> JobResult:
        config = self.config
        order = BackupOrder(
            address=address,
            broker=self.broker,
            directory=config.directory,
            keep=config.keep,
            made_at_ms=began_ms,
            seed=self.seed,
        )
        # In its own session, so that signals to the broker's process group do not reach it.
        child = await asyncio.create_subprocess_exec(
            *self.command,
            msgspec.json.encode(order).decode(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            limit=SAID_BYTES_MAX,
        )
        self._child = child
        try:
            assert child.stdout is not None
            async with asyncio.timeout(config.timeout_ms / 1_000):
                said = await child.stdout.read(SAID_BYTES_MAX)
                code = await child.wait()
        except TimeoutError:
            return JobResult(error=f"it took longer than backup.timeout_ms={config.timeout_ms}")
        finally:
            self._child = None
            await _end(child)
        lines = said.splitlines()
        if not lines:
            return JobResult(error=f"the backup's process ended with {code}")
        return msgspec.json.decode(lines[-1], type=JobResult)

    async def stop(self) -> None:
        """Stop a running backup.

        Its process removes what it has written; if it dies first, the next backup does that.
        """
        running = self._running
        if running is not None:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


class BackupOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The child's only argument, as JSON."""

    address: str
    broker: str
    directory: str
    keep: int
    made_at_ms: int
    #: Seed of the broker's store. With None, backups are told apart by the broker's name only.
    seed: int | None = None


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(END_S):
            await child.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
