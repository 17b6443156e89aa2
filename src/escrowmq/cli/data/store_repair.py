"""The steps of ``escrowmq store repair``: check, print the plan, repair, check again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from escrowmq.cli.data import store_text
from escrowmq.model.clock import SystemClock
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.recovery.recovery import NO_HOST, open_store
from escrowmq.store.repair.inspect import check, inspect
from escrowmq.store.repair.repair import Abandoned, end_lost, fixable, refuse_impossible, repair
from escrowmq.store.repair.report import RangeKind
from escrowmq.transaction.policy import CheckPolicy


class RepairRun:
    """One repair of a store. The caller holds the lock of the data directory."""

    def __init__(self, data: Path, store: Path) -> None:
        self._disk = OsDisk(store)
        self._inspection = inspect(self._disk)
        self._report = self._inspection.report
        self._aside = new_directory(data / "damaged")
        #: Whether a repair can do anything.
        self.is_needed = bool(self._report.damage or fixable(self._report) or self._report.lost)
        #: Whether the store is damaged now; ``do`` updates it.
        self.is_left = self._report.is_damaged

    def plan(self) -> Iterator[str]:
        """Yield what is wrong and what will be done, in lines."""
        if not self._report.is_damaged:
            yield "No damage found."
            if self._report.lost:
                yield "Transactions that earlier repairs left undecided are checked again:"
        else:
            yield from store_text.damage(self._report)
            refuse_impossible(self._inspection)
            yield ""
            yield "This will be done:"
        for found in self._report.damage:
            if found.kind is RangeKind.MISSING:
                yield f"  fill the missing part of the log from offset {found.log_offset} on"
            else:
                yield (
                    f"  copy {found.length} bytes of the log aside and fill their place at log "
                    f"offset {found.log_offset}"
                )
        for finding in fixable(self._report):
            yield f"  move {finding.path} aside, and rebuild it from the log"
        if self._report.damage or self._report.lost:
            yield "  roll back undecided transactions that can no longer be delivered whole"
        if self._report.is_damaged:
            yield f"Nothing is deleted: copies go to {self._aside}"

    def do(self, config: StoreConfig, policy: CheckPolicy) -> Iterator[str]:
        """Carry out the repair, and yield a line for each step."""
        repaired = repair(self._disk, OsDisk(self._aside), self._inspection)
        yield from (f"Copied {copy.path} to {self._aside / copy.copy}" for copy in repaired.copies)
        for span in repaired.filled:
            yield f"Filled {span.count} bytes at log offset {span.first}"
        # Open with the state table: the next start compares the chosen state store with the log.
        by_table = replace(policy, state_store="table")
        store, found = open_store(self._disk, config, by_table, NO_HOST)
        yield f"Opened: {found.frames} frames replayed, {found.cut_bytes} torn bytes cut off"
        # Decide at the store's own last time: by a wrong clock, everything could look old.
        ended = end_lost(store, store.last_at_ms or SystemClock().now_ms())
        store.close()
        yield from map(_ended, ended)
        report = check(self._disk)
        self.is_left = report.is_damaged
        yield ""
        if report.is_damaged:
            yield from store_text.damage(report)
        else:
            yield "No damage is left."


def _ended(one: Abandoned) -> str:
    return (
        f"Ended half message {one.half_offset} ({one.state.label}) for topic {one.topic}, "
        f"sent by {one.producer_group or 'an unknown group'}"
    )


def new_directory(above: Path) -> Path:
    """Return an unused directory path, named after the current time."""
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    number, path = 1, above / stamp
    while path.exists():
        number += 1
        path = above / f"{stamp}-{number}"
    return path
