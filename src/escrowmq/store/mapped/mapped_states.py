"""State store in mapped files: fixed records whose state is overwritten in place.

It is RocketMQ 3.1.4's table, with our commit log as its redo log. The place of a record follows
from its half offset. A file is deleted when all of its rows exist and none is undecided. While the
broker runs, the system writes the files back when it likes. Only a clean stop leaves a position,
and without one the next start makes the files again from the log.
"""

from __future__ import annotations

import errno
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec
import numpy as np

from escrowmq.model.errors import StoreUnusable, Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.store.disk.disk import read_whole, write_whole
from escrowmq.store.disk.rows import Rows, check_words
from escrowmq.store.mapped.record_file import DIRECTORY, SIDECAR, RecordFile
from escrowmq.store.mapped.records import (
    PARKED,
    PREPARED,
    are_open,
    codes,
    packed,
    packed_checks,
    states,
)
from escrowmq.transaction.state_store import (
    HELD_ROWS,
    FoundStates,
    StatePosition,
    are_undecided,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.store.disk.disk import Disk
    from escrowmq.transaction.state_store import StateBatch, StateClaim, StatePart, WantedStates

log = event_log(__name__)

POSITION = f"{DIRECTORY}/position"
_NAME = re.compile(rf"\d{{20}}({re.escape(SIDECAR)})?|position")


class MappedStates:
    """All mapped files of one store."""

    name = "mapped"

    def __init__(self, disk: Disk, file_rows: int) -> None:
        self.part_rows = file_rows
        self._disk = disk
        #: By base, ascending.
        self._files: dict[int, RecordFile] = {}
        #: The next half offset.
        self._rows_end = 0
        #: Torn records that the last ``open`` found.
        self.torn = 0

    # The port.

    def open(self, claim: StateClaim) -> StatePosition | None:
        """Map the files if they are from a clean stop in this history; delete them otherwise."""
        disk = self._disk
        with _waiting_for_room():
            disk.make_directory(DIRECTORY)
        names = disk.list(DIRECTORY)
        for name in names:
            if not _NAME.fullmatch(name):
                path = f"{DIRECTORY}/{name}"
                raise StoreUnusable("store_foreign", "move this file away", path=path)
        position = self._stopped_at()
        # From now on the files change in place, so they no longer belong to a position.
        disk.remove(POSITION)
        disk.flush_directory(DIRECTORY)
        if position is None or not claim.lineage.holds(position.epoch, position.log_offset):
            for name in names:
                disk.remove(f"{DIRECTORY}/{name}")
            return None
        self._rows_end = position.rows_end
        for name in names:
            if name.isdecimal():
                with _waiting_for_room():
                    self._file(int(name))
        self.torn = sum(file.empty_torn() for file in self._files.values())
        if self.torn:
            log.warning("state_records_torn", extra={"records": self.torn})
        return position

    def follow(self, batch: StateBatch) -> int:
        """Write the rows of a batch into their records, in place."""
        self._rows_end = max(self._rows_end, batch.position.rows_end)
        with _waiting_for_room():
            for base, rows in self._by_file(batch.appended):
                records, checks = packed(rows, batch.origins)
                self._file(base).write(rows["half_offset"] - base, records, checks)
        unheld = 0
        for base, rows in self._by_file(batch.decided):
            unheld += self._update(base, rows, is_decided=True)
        for base, rows in self._by_file(batch.checked):
            self._update(base, rows, is_decided=False)
        self._delete_decided()
        return unheld

    def replace(self, part: StatePart) -> int:
        """Write the records of one file, and return how many differed."""
        assert part.end - part.first == self.part_rows, "a part is one file"
        self._rows_end = max(self._rows_end, part.rows_end)
        is_kept = part.end > part.rows_end or are_undecided(part.rows["state"]).any()
        file = self._files.get(part.first)
        if not is_kept:
            if file is None:
                return 0
            stale = file.undecided
            self._remove(part.first)
            return stale
        with _waiting_for_room():
            file = self._file(part.first)
        at = part.rows["half_offset"] - part.first
        records, checks = file.kept(at)
        known_records, known_checks = packed(part.rows, part.origins)
        file.keep_known(at, known_records, known_checks)
        records[at], checks[at] = known_records, known_checks
        is_same = file.records == records
        changed = np.flatnonzero(~is_same | (file.checks != checks))
        # The frame of a decision is not always known when a broker that serves makes a file again.
        is_completed = is_same & ~are_open(records["state"]) & (file.checks["op_offset"] < 0)
        differed = np.count_nonzero(~is_completed[changed])
        file.write(changed, records[changed], checks[changed])
        # Count anew: if another program changed a record, ``write`` has not counted it right.
        file.undecided = file.count_undecided()
        return int(differed)

    def parts_held(self) -> list[int]:
        """The starts of all files."""
        return list(self._files)

    def scan(self, wanted: WantedStates) -> FoundStates:
        """Search the files in order, until as many wanted records are found as the limit allows."""
        found: list[Rows] = [np.empty(0, dtype=np.int64)]
        left = wanted.limit + 1
        wanted_codes = codes(np.array(wanted.states, dtype=np.uint8))
        for base, file in self._files.items():
            if base + self.part_rows <= wanted.first or base >= wanted.end:
                continue
            if wanted.check_at_ms is None:
                at = file.of_states(wanted_codes)
            else:
                at = file.due(wanted_codes, wanted.check_at_ms, wanted.stored_at_ms)
            rows = at + base
            rows = rows[(rows >= wanted.first) & (rows < wanted.end)][:left]
            found.append(rows)
            left -= len(rows)
            if not left:
                break
        rows = np.concatenate(found)
        next_first = int(rows[wanted.limit]) if len(rows) > wanted.limit else None
        return FoundStates(rows[: wanted.limit], next_first)

    def low_water(self) -> int:
        """The first undecided record; the end if there is none."""
        for base, file in self._files.items():
            if file.undecided:
                return base + int(np.argmax(are_open(file.records["state"])))
        return self._rows_end

    def snapshot(self, first: int, end: int) -> Rows:
        """Return the undecided records that stand for their transactions."""
        found = [np.zeros(0, dtype=HELD_ROWS)]
        for base, file in self._files.items():
            if base + self.part_rows <= first or base >= end:
                continue
            at = file.of_states(np.array([PREPARED, PARKED]))
            at = at[(at + base >= first) & (at + base < end)]
            records, checks = file.records[at], file.checks[at]
            held = np.zeros(len(at), dtype=HELD_ROWS)
            held["half_offset"] = at + base
            held["log_offset"] = records["log_offset"]
            held["state"] = states(records["state"])
            held["next_at_ms"] = checks["next_at_ms"]
            held["checks_sent"] = checks["checks_sent"]
            found.append(held[checks["is_head"] == 1])
        return np.concatenate(found)

    def close(self, position: StatePosition | None) -> None:
        """Flush and unmap the files; a position says that they are whole up to there."""
        if position is not None:
            for file in self._files.values():
                file.flush()
            self._disk.flush_directory(DIRECTORY)
            body = msgspec.json.encode(position)
            write_whole(self._disk, POSITION, b"%08x %s" % (crc32(body), body))
            self._disk.flush_directory(DIRECTORY)
        for file in self._files.values():
            file.close()
        self._files = {}

    # Files.

    def _stopped_at(self) -> StatePosition | None:
        if not self._disk.exists(POSITION):
            return None
        check, _, body = read_whole(self._disk, POSITION).partition(b" ")
        if check != b"%08x" % crc32(body):
            return None
        return msgspec.json.decode(body, type=StatePosition)

    def _file(self, base: int) -> RecordFile:
        file = self._files.get(base)
        if file is None:
            file = RecordFile(self._disk, base, self.part_rows)
            self._files[base] = file
            if base < max(self._files):
                self._files = dict(sorted(self._files.items()))
        return file

    def _by_file(self, rows: Rows) -> Iterator[tuple[int, Rows]]:
        """Group rows by file: yield the base of each file, and its rows."""
        bases = rows["half_offset"] - rows["half_offset"] % self.part_rows
        for base in np.unique(bases).tolist():
            yield base, rows[bases == base]

    def _update(self, base: int, rows: Rows, *, is_decided: bool) -> int:
        """Overwrite states and checks in place; return how many records were not undecided."""
        file = self._files.get(base)
        if file is None:
            return len(rows)
        at = rows["half_offset"] - base
        records = file.records[at]
        wanted = codes(rows["state"])
        is_held = are_open(records["state"])
        # A batch that failed half-way is repeated, and finds its own decisions.
        unheld = np.count_nonzero(~is_held & (records["state"] != wanted)) if is_decided else 0
        is_known = (records["log_offset"] == rows["log_offset"]) | (rows["log_offset"] < 0)
        is_known &= records["size"] > 0
        records["state"] = wanted
        records["check"] = check_words(records)
        file.write(at[is_known], records[is_known], packed_checks(rows)[is_known])
        return int(unheld)

    def _delete_decided(self) -> None:
        for base, file in list(self._files.items()):
            if not file.undecided and base + self.part_rows <= self._rows_end:
                self._remove(base)

    def _remove(self, base: int) -> None:
        self._files.pop(base).remove()


@contextmanager
def _waiting_for_room() -> Iterator[None]:
    """Raise Unavailable for an OSError, as of a full disk: a later attempt may succeed."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "the disk has no room for its files" if is_full else "its files cannot be written"
        raise Unavailable("state_store_away", advice, cause=str(error)) from error
