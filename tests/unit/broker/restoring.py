"""Backups of brokers that have stopped, and what a restore makes of them."""

from __future__ import annotations

from pathlib import Path

from escrowmq.broker.server import META, STORE
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.repair import backup
from tests.unit.broker.wire import T0


def back_up(data: Path, copy: Path) -> None:
    """Back up a broker's data directory."""
    backup.take(
        OsDisk(data / STORE),
        OsDisk(copy),
        lambda: OsDisk(data).open(META),
        now_ms=T0,
        release="test",
    )


def restore(copy: Path, data: Path) -> None:
    """Restore a backup into a new data directory."""
    backup.restore(OsDisk(copy), OsDisk(data))
