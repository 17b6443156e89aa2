"""Restarts: after SIGKILL with a checkpoint, and from the log alone."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import zlib
from pathlib import Path

from bench.figures.common import NOW_MS, commit, held, message, opened, report, scratch


def run() -> None:
    """Report restart times after SIGKILL, which must not grow with the log, and the replay rate."""
    with scratch() as path:
        took = {}
        for gib in (1, 4):
            place = path / f"store-{gib}"
            place.mkdir()
            fill_and_die(place, gib)
            runs = []
            for _ in range(3):
                started = time.perf_counter()
                store, found = opened(place)
                runs.append(time.perf_counter() - started)
                assert not found.rebuilt_because
                # Leave the store open and unclean, as a kill would.
                store.log.close()
                store.keys.close()
            took[gib] = runs[0]
            if gib == 1:
                replay(place)
            shutil.rmtree(place)
        report(
            "restart_4g_minus_1g_s",
            took[4] - took[1],
            "s",
            restart_1g_s=took[1],
            restart_4g_s=took[4],
        )


def fill_and_die(path: Path, gib: int) -> None:
    """Fill a store in a child process that ends by killing itself."""
    child = subprocess.run(  # noqa: S603 - this module itself
        [sys.executable, "-m", "bench.figures.restart", str(path), str(gib)], check=False
    )
    assert child.returncode == -signal.SIGKILL, child.returncode


def fill(path: Path, gib: int) -> None:
    """Commit transactions of 1 KiB, with checkpoints, until the log has `gib` GiB; then die."""
    store, _ = opened(path, durability="os")
    body = os.urandom(1024)
    number = 0
    while store.log.end < gib * 1024**3:
        for _ in range(500):
            number += 1
            one = message(number, body, queue_id=number % 4)
            now_ms = NOW_MS + number
            commit(store, held(store, (one,), one.unique_key, now_ms), now_ms)
        store.sync()
        if store.checkpoint_due:
            store.checkpoint()
    os.kill(os.getpid(), signal.SIGKILL)


def replay(path: Path) -> None:
    """Delete everything but the log, and replay it."""
    for name in ("checkpoint", "checkpoint.old"):
        (path / name).unlink(missing_ok=True)
    rates, frames = [], 0
    for _ in range(3):
        started = time.perf_counter()
        store, found = opened(path)
        took = time.perf_counter() - started
        assert found.replayed_from == 0
        rates.append(store.recovered_at / took / 1e6)
        frames = found.frames
        store.log.close()
        store.keys.close()
        for name in ("checkpoint", "checkpoint.old"):
            (path / name).unlink(missing_ok=True)
    report(
        "replay_mb_per_s",
        statistics.median(rates),
        "MB/s",
        frames=frames,
        bare_checksum_mb_per_s=bare_checksum_rate(),
    )


def bare_checksum_rate() -> float:
    """Speed of the machine right now: 1 KiB pieces through the checksum, in a loop."""
    piece = os.urandom(1024)
    rates = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(100_000):
            zlib.crc32(piece)
        rates.append(100_000 * len(piece) / (time.perf_counter() - started) / 1e6)
    return statistics.median(rates)


if __name__ == "__main__":
    fill(Path(sys.argv[1]), int(sys.argv[2]))
