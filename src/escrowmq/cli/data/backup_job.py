"""The child process behind ``[backup]``: copy, restore, check, and delete old backups.

The broker runs it as ``python -m escrowmq.cli.data.backup_job ORDER``. It prints one line of JSON.

    DIRECTORY/BROKER-20261118T033000Z               a good backup, with verified.json
    DIRECTORY/BROKER-20261118T033000Z.unfinished    a backup in progress, or one that was cut short
    DIRECTORY/BROKER-20261118T033000Z.restored      its restore, while it is checked
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import sys
import time
from contextlib import closing, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from escrowmq.broker.periodic.scheduled_backups import (
    VERIFIED,
    BackupOrder,
    JobResult,
    Verified,
    file_name,
    is_of_other_store,
    verified_backups,
)
from escrowmq.model.errors import EscrowError, StoreCorrupt
from escrowmq.store.disk.disk import OsDisk

if TYPE_CHECKING:
    from escrowmq.store.repair.backup import Manifest, Room

UNFINISHED, RESTORED = ".unfinished", ".restored"
NICENESS = 19
#: The exit code that a shell reports for a process ended by SIGTERM.
ENDED = 128 + signal.SIGTERM


def main() -> None:
    """Carry out the order and print the result as the last line on standard output."""
    _step_back()
    # Exit through Python, so that unfinished copies are removed; the default action leaves them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ENDED))
    _end_with_broker()
    order = msgspec.json.decode(sys.argv[1], type=BackupOrder)
    try:
        result = make(order)
    except EscrowError as error:
        result = JobResult(error=str(error))
    except OSError as error:
        result = JobResult(error=f"{error.strerror or error}: {error.filename or ''}")
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    sys.exit(1 if result.error else 0)


def make(order: BackupOrder) -> JobResult:
    """Make a backup, check it, and only then delete older backups."""
    began_s = time.monotonic()
    directory = Path(order.directory)
    directory.mkdir(parents=True, exist_ok=True)
    _clean(directory, order)
    made_at = datetime.fromtimestamp(order.made_at_ms / 1_000, UTC)
    path = directory / f"{file_name(order.broker)}-{made_at:%Y%m%dT%H%M%SZ}"
    unfinished = path.with_name(path.name + UNFINISHED)
    restored = path.with_name(path.name + RESTORED)
    try:
        manifest, room = _back_up(order.address, unfinished)
        _check(unfinished, restored, room)
        verified = Verified(
            made_at_ms=order.made_at_ms,
            log_end=manifest.log_end,
            bytes=manifest.size,
            took_ms=int((time.monotonic() - began_s) * 1_000),
        )
        _write(unfinished / VERIFIED, msgspec.json.encode(verified))
        unfinished.rename(path)
        _flush_directory(directory)
    finally:
        _clean(directory, order)
    return JobResult(path=str(path), verified=verified, removed=_prune(directory, order, path))


def _back_up(address: str, target: Path) -> tuple[Manifest, Room]:
    from escrowmq.cli.data.backup_commands import back_up_running
    from escrowmq.cli.options import Output
    from escrowmq.store.repair.backup import read_manifest

    with redirect_stdout(io.StringIO()):
        # Two copies: the restore check makes a second one in the same directory.
        room = back_up_running(target, address, Output.JSON, copies=2)
    return read_manifest(OsDisk(target, read_only=True)), room


def _check(backup: Path, restored: Path, room: Room) -> None:
    """Restore the backup as an operator would, and check it like ``escrowmq store check``."""
    from escrowmq.store.meta.meta import Meta
    from escrowmq.store.repair import backup as backups
    from escrowmq.store.repair import inspect

    backups.restore(OsDisk(backup, read_only=True), OsDisk(restored), room=room)
    if inspect.check(OsDisk(restored / backups.STORE, read_only=True)).is_damaged:
        raise StoreCorrupt(
            "store_damaged", "the restored backup is damaged; check the data directory"
        )
    with closing(Meta(restored / backups.META)):
        pass


def _prune(directory: Path, order: BackupOrder, made: Path) -> list[str]:
    """Delete the oldest good backups until ``order.keep`` remain; return their names.

    The new backup always stays, even if a wrong clock gave older backups a later date.
    """
    removed = []
    good = verified_backups(directory, order.broker, order.seed)
    others = [path for path, _ in good if path != made]
    for path in others[: max(len(others) - order.keep + 1, 0)]:
        # Rename it first, so that no interrupted deletion leaves a partial backup with a good name.
        doomed = path.with_name(path.name + UNFINISHED)
        with contextlib.suppress(OSError):
            path.rename(doomed)
            shutil.rmtree(doomed)
            removed.append(path.name)
    return removed


def _clean(directory: Path, order: BackupOrder) -> None:
    """Remove the unfinished files of this broker's jobs."""
    ours = re.compile(
        rf"{re.escape(file_name(order.broker))}-[0-9]{{8}}T[0-9]{{6}}Z({UNFINISHED}|{RESTORED})"
    )
    for path in directory.iterdir():
        if ours.fullmatch(path.name) and not is_of_other_store(path, order.seed):
            shutil.rmtree(path, ignore_errors=True)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    _flush_directory(path.parent)


def _flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _step_back() -> None:
    """Lower this process's priority, so that the broker gets the CPU first."""
    os.nice(NICENESS)
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _end_with_broker() -> None:
    from escrowmq.pipeline.spark.parent import end_with_parent

    end_with_parent(os.getppid())


if __name__ == "__main__":
    main()
