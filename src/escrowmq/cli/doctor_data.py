"""Checks of ``escrowmq doctor`` on a data directory, without opening the store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from escrowmq.cli.findings import Finding, information, ok, problem, warning
from escrowmq.cli.output import human_bytes
from escrowmq.model.errors import EscrowError

FREE_BYTES_LOW = 1024**3


def findings(data: Path) -> Iterator[Finding]:
    """Yield each check of the data directory."""
    check = "data directory"
    if not data.is_dir():
        advice = "escrowmq up makes it; or is the path wrong?"
        yield information(check, f"{data} is not there", advice)
        return
    if not os.access(data, os.W_OK | os.X_OK):
        yield problem(check, f"{data} cannot be written", "let the broker's user write it")
        return
    yield _lock(data)
    yield from _store(data)
    yield free_finding(shutil.disk_usage(data).free)


def _lock(data: Path) -> Finding:
    from escrowmq.store.lock import holder_of

    holder = holder_of(data)
    if holder is None:
        return ok("data directory", f"{data}, nobody serves it")
    return ok("data directory", f"{data}, served by process {holder.pid or 'unknown'}")


def _store(data: Path) -> Iterator[Finding]:
    from escrowmq.store import checkpoint
    from escrowmq.store import format as formats
    from escrowmq.store.disk import OsDisk

    disk = OsDisk(data / "store", read_only=True)
    if not disk.exists(formats.PATH):
        yield information("store", "there is none yet", "escrowmq up makes it")
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
        yield information("checkpoint", f"the next start makes files anew: {newest.rebuild}")
    else:
        yield ok("checkpoint", f"up to log offset {newest.log_end}")


def free_finding(free_bytes: int) -> Finding:
    """Check the free space against a fixed limit; a running broker applies its own limits."""
    if free_bytes < FREE_BYTES_LOW:
        return warning(
            "disk space", f"{human_bytes(free_bytes)} free", "make room, or lower retention"
        )
    return ok("disk space", f"{human_bytes(free_bytes)} free")
