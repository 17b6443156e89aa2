"""The child process behind ``[backup]``: copy, restore, check, and delete old backups.

The broker runs it as ``python -m escrowmq.cli.backup_job ORDER``.  It prints one line of JSON.

    DIRECTORY/BROKER-20261118T033000Z               a good backup, with verified.json
    DIRECTORY/BROKER-20261118T033000Z.unfinished    one that is being made, or was cut short
    DIRECTORY/BROKER-20261118T033000Z.restored      its restore, while it is checked
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import time
from contextlib import closing, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from escrowmq.broker.scheduled_backups import (
    VERIFIED,
    BackupOrder,
    JobResult,
    Verified,
    file_name,
    verified_backups,
)
from escrowmq.model.errors import EscrowError, StoreCorrupt

if TYPE_CHECKING:
    from escrowmq.store.backup import Manifest

UNFINISHED, RESTORED = ".unfinished", ".restored"
NICENESS = 19


def main() -> None:
    """Do what the order says; the result is the last line on standard output."""
    _step_back()
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
    """Make a backup, check it, and only then delete older ones."""
    began_s = time.monotonic()
    directory = Path(order.directory)
    directory.mkdir(parents=True, exist_ok=True)
    _clean(directory, order.broker)
    made_at = datetime.fromtimestamp(order.made_at_ms / 1_000, UTC)
    path = directory / f"{file_name(order.broker)}-{made_at:%Y%m%dT%H%M%SZ}"
    unfinished = path.with_name(path.name + UNFINISHED)
    restored = path.with_name(path.name + RESTORED)
    try:
        manifest = _back_up(order.address, unfinished)
        _check(unfinished, restored)
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
        _clean(directory, order.broker)
    return JobResult(path=str(path), verified=verified, removed=_prune(directory, order))


def _back_up(address: str, target: Path) -> Manifest:
    from escrowmq.cli.backup_commands import backup
    from escrowmq.cli.output import Output
    from escrowmq.store.backup import read_manifest
    from escrowmq.store.disk import OsDisk

    with redirect_stdout(io.StringIO()):
        backup(target, address, data=None, output=Output.JSON, dry_run=False)
    return read_manifest(OsDisk(target, read_only=True))


def _check(backup: Path, restored: Path) -> None:
    """Restore it as an operator would, and read all of it as ``escrowmq store check`` does."""
    from escrowmq.store import backup as backups
    from escrowmq.store import inspect
    from escrowmq.store.disk import OsDisk
    from escrowmq.store.meta import Meta

    backups.restore(OsDisk(backup, read_only=True), OsDisk(restored))
    if inspect.check(OsDisk(restored / backups.STORE, read_only=True)).is_damaged:
        raise StoreCorrupt(
            "store_damaged", "the restored backup is damaged; check the data directory"
        )
    with closing(Meta(restored / backups.META)):
        pass


def _prune(directory: Path, order: BackupOrder) -> list[str]:
    """Delete good backups beyond those that are kept, the oldest first."""
    removed = []
    for path, _ in verified_backups(directory, order.broker)[: -order.keep]:
        # First the name of a good one goes: a deletion that is cut short leaves no half backup.
        doomed = path.with_name(path.name + UNFINISHED)
        with contextlib.suppress(OSError):
            path.rename(doomed)
            shutil.rmtree(doomed)
            removed.append(path.name)
    return removed


def _clean(directory: Path, broker: str) -> None:
    """Remove what an earlier job of this broker left unfinished."""
    ours = re.compile(
        rf"{re.escape(file_name(broker))}-[0-9]{{8}}T[0-9]{{6}}Z({UNFINISHED}|{RESTORED})"
    )
    for path in directory.iterdir():
        if ours.fullmatch(path.name):
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
    """Leave the processor to the broker."""
    os.nice(NICENESS)
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _end_with_broker() -> None:
    from escrowmq.pipeline.spark.parent import end_with_parent

    end_with_parent(os.getppid())


if __name__ == "__main__":
    main()
