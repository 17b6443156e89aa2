"""Checks of ``escrowmq doctor`` on a data directory, without opening the store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from escrowmq.cli.doctor.findings import DoctorFinding, information, judged, ok, problem, warning
from escrowmq.cli.output import human_bytes
from escrowmq.model.errors import EscrowError
from escrowmq.store.checkpoint import checkpoint
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.disk.lock import holder_of
from escrowmq.store.recovery import format as formats

FREE_BYTES_LOW = 1024**3


def findings(data: Path) -> Iterator[DoctorFinding]:
    """Yield each check of the data directory."""
    check = "data directory"
    if not data.is_dir():
        advice = "escrowmq up creates it; check the path"
        yield information(check, f"{data} does not exist", advice)
        return
    if not os.access(data, os.W_OK | os.X_OK):
        yield problem(
            check, f"{data} cannot be written", "give the broker's user the right to write"
        )
        return
    yield _lock(data)
    yield from _store(data)
    yield free_finding(shutil.disk_usage(data).free)


def _lock(data: Path) -> DoctorFinding:
    holder = holder_of(data)
    if holder is None:
        return ok("data directory", f"{data}, no process serves it")
    return ok("data directory", f"{data}, served by process {holder.pid or 'unknown'}")


def _store(data: Path) -> Iterator[DoctorFinding]:
    disk = OsDisk(data / "store", read_only=True)
    if not disk.exists(formats.PATH):
        yield information("store", "there is none yet", "escrowmq up creates it")
        return
    try:
        form = formats.read(disk)
    except EscrowError as error:
        yield problem("store", str(error), "escrowmq store check tells more")
        return
    yield ok("store", f"format version {form.version}")
    newest = checkpoint.load(disk, checkpoint.PATH)
    if newest is None:
        yield warning(
            "checkpoint",
            "none, or damaged: the next start replays the log",
            "escrowmq store check tells more",
        )
    elif newest.rebuild:
        yield information("checkpoint", f"the next start rebuilds these files: {newest.rebuild}")
    else:
        yield ok("checkpoint", f"up to log offset {newest.log_end}")


def free_finding(free_bytes: int) -> DoctorFinding:
    """Check the free space against a fixed limit; a running broker applies its own limits."""
    found = f"{human_bytes(free_bytes)} free"
    is_low = free_bytes < FREE_BYTES_LOW
    return judged("disk space", found, (is_low, warning, "free some space, or lower retention"))
