"""One mapped file of records, with its sidecar, and how many of its records are undecided."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from escrowmq.store.disk.rows import Rows, check_words
from escrowmq.store.mapped.records import CHECKS, RECORD, are_open, are_torn

if TYPE_CHECKING:
    from escrowmq.store.disk.disk import Disk
    from escrowmq.store.disk.mapping import MappedBytes

DIRECTORY = "mapped"
SIDECAR = ".checks"


def path_of(base: int) -> str:
    """Return the path of the file that starts at this half offset."""
    return f"{DIRECTORY}/{base:020d}"


class RecordFile:
    """Records of the rows ``[base, base + count)``."""

    def __init__(self, disk: Disk, base: int, count: int) -> None:
        """Map the files; make them if they do not exist."""
        self.base = base
        self._disk = disk
        self._maps: list[MappedBytes] = []
        self.records = self._mapped(path_of(base), RECORD, count)
        self.checks = self._mapped(path_of(base) + SIDECAR, CHECKS, count)
        self.undecided = self.count_undecided()

    def _mapped(self, path: str, kind: np.dtype[np.void], count: int) -> Rows:
        size = count * kind.itemsize
        if not self._disk.exists(path) or self._disk.allocated(path) < size:
            self._disk.allocate(path, size)
        self._maps.append(self._disk.map(path, size))
        return np.frombuffer(self._maps[-1].buffer, dtype=kind)

    def count_undecided(self) -> int:
        """Count the undecided records."""
        return int(np.count_nonzero(are_open(self.records["state"])))

    def empty_torn(self) -> int:
        """Empty the records that are torn, and return their number; ``replace`` repairs them."""
        is_torn = are_torn(self.records) | are_torn(self.checks)
        at = np.flatnonzero(is_torn)
        self.records[at] = np.zeros((), dtype=RECORD)
        self.checks[at] = np.zeros((), dtype=CHECKS)
        self.undecided = self.count_undecided()
        return len(at)

    def write(self, at: Rows, records: Rows, checks: Rows) -> None:
        """Write whole records; no record is named twice."""
        self.undecided -= int(np.count_nonzero(are_open(self.records["state"][at])))
        self.records[at] = records
        self.checks[at] = checks
        self.undecided += int(np.count_nonzero(are_open(records["state"])))

    def kept(self, known: Rows) -> tuple[Rows, Rows]:
        """Return copies of all records, with those emptied that are undecided and not ``known``.

        Decided ones stay: retention may have deleted their rows while another row keeps this file.
        """
        records, checks = self.records.copy(), self.checks.copy()
        is_gone = are_open(records["state"])
        is_gone[known] = False
        records[is_gone] = np.zeros((), dtype=RECORD)
        checks[is_gone] = np.zeros((), dtype=CHECKS)
        return records, checks

    def keep_known(self, at: Rows, records: Rows, checks: Rows) -> None:
        """Complete the new records of decided rows with what only the mapped ones have.

        The core may have forgotten a group's name, or not have read a decision's frame from files.
        """
        held, is_decided = self.records[at], ~are_open(records["state"])
        is_same = (held["log_offset"] == records["log_offset"]) & (held["size"] == records["size"])
        is_same &= is_decided
        records["group_hash"] = np.where(is_same, held["group_hash"], records["group_hash"])
        records["check"] = check_words(records)
        is_unknown = is_same & (checks["op_offset"] < 0)
        op_offsets = self.checks["op_offset"][at]
        checks["op_offset"] = np.where(is_unknown, op_offsets, checks["op_offset"])
        checks["check"] = check_words(checks)

    def due(self, wanted: Rows, check_at_ms: int, stored_at_ms: int) -> Rows:
        """Return the indices of heads with these codes that are due, or were stored by a time."""
        is_due = self.checks["next_at_ms"] <= check_at_ms
        if stored_at_ms >= 0:
            is_due |= self.records["stored_at_s"] <= stored_at_ms // 1_000
        is_due &= self._are(wanted) & (self.checks["is_head"] == 1)
        found: Rows = np.flatnonzero(is_due)
        return found

    def of_states(self, wanted: Rows) -> Rows:
        """Return the indices of records with one of these codes."""
        found: Rows = np.flatnonzero(self._are(wanted))
        return found

    def _are(self, wanted: Rows) -> Rows:
        found = np.zeros(len(self.records), dtype=np.bool_)
        # For a few codes, this is several times as fast as numpy's isin.
        for code in wanted.tolist():
            found |= self.records["state"] == code
        return found

    def flush(self) -> None:
        """Return once the records are on the disk."""
        for mapped in self._maps:
            mapped.flush()

    def close(self) -> None:
        """Unmap the files."""
        self.records, self.checks = np.empty(0, dtype=RECORD), np.empty(0, dtype=CHECKS)
        for mapped in self._maps:
            mapped.close()

    def remove(self) -> None:
        """Unmap and delete the files."""
        self.close()
        self._disk.remove(path_of(self.base))
        self._disk.remove(path_of(self.base) + SIDECAR)
