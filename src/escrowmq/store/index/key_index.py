"""Index of messages by key: maps the CRC-32 of a key to the log offsets of messages that carry it.

The index is a projection of the commit log. If it is lost or damaged, it is rebuilt from the log,
so nothing is flushed on the hot path. New entries collect in memory. A checkpoint turns them into
a *run*, a sorted file that never changes (``key_run`` has its byte layout). Eight runs of about the
same size are merged into one, so a billion entries take about forty files. Memory holds one number
per 1,024 entries on disk, and no Python object per entry.

A search returns candidates. Different keys may share a hash, so the caller checks the record.

A checkpoint calls ``snapshot`` -> ``PendingRun.write`` -> ``install`` and stores ``names``. Once
the checkpoint is durable, it removes the runs that ``discard`` returns for them. A merge calls
``merge`` -> ``write`` -> ``install`` at any time. Only ``write`` and ``remove_runs`` wait for the
disk, and they may run in another thread; the thread that adds entries calls everything else. A
file is removed only when no checkpoint names it. ``open`` removes files that no checkpoint names,
because they are ahead of the recovered log.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest

from escrowmq.model.errors import StoreUnusable, Unavailable
from escrowmq.store.disk.disk import Disk, on_error
from escrowmq.store.index.key_run import (
    ENTRY_BYTES,
    Entries,
    KeyColumns,
    KeyRun,
    damaged,
    merged,
    open_run,
    write_run,
)

OFFSET_END = 2**63
"""Greater than every log offset."""

_NAME = re.compile(r"(\d{20})\.run(\.tmp)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyIndexLimits:
    """Sizes at which the index asks for a snapshot or a merge, or refuses."""

    #: Entries in memory at which a snapshot is due; 12 bytes each.
    active_entries_max: int = 4_194_304
    #: Runs of one size class at which a merge is due.
    merge_runs: int = 8
    #: Runs smaller than this count as one size class.
    small_entries: int = 4_096
    #: A merge that would produce more entries than this is never due.
    run_entries_max: int = 2**32
    #: Runs at which a snapshot is refused; reached only if the caller never merges.
    runs_max: int = 256
    #: The most log offsets that one search returns.
    found_max: int = 10_000


DEFAULT_LIMITS = KeyIndexLimits()


def key_hash(key: str) -> int:
    """The hash under which the index stores a key."""
    return zlib.crc32(key.encode())


class KeyIndex:
    """The index; call ``open`` before anything else.

    At most one ``snapshot`` and one ``merge`` may be in progress. A failed ``write`` may be
    retried. Until a run is installed, searches find its entries where they were before.
    """

    def __init__(
        self, disk: Disk, directory: str = "keyindex", limits: KeyIndexLimits = DEFAULT_LIMITS
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._limits = limits
        self._reset()

    def _reset(self) -> None:
        self._hashes = array("I")
        self._offsets = array("Q")
        self._frozen: KeyColumns | None = None
        self._snapshot: PendingRun | None = None
        self._merge: PendingRun | None = None
        #: Sorted by highest offset, descending.
        self._runs: list[KeyRun] = []
        self._garbage: list[KeyRun] = []
        self._low = 0
        self._next_number = 1

    def open(self, valid_names: Collection[str]) -> None:
        """Open exactly these runs, which a checkpoint named, and remove all others.

        Raises StoreCorrupt("key_index_damaged") if a run is missing or damaged. The caller then
        calls ``open(())`` and adds everything again from the log.
        """
        self.close()
        self._disk.make_directory(self._directory)
        present = self._disk.list(self._directory)
        for name in present:
            known = _NAME.fullmatch(name)
            if known is None:
                raise StoreUnusable(
                    "key_index_foreign", "move this file away", path=f"{self._directory}/{name}"
                )
            self._next_number = max(self._next_number, int(known[1]) + 1)
        with on_error(self.close):
            for name in sorted(set(valid_names)):
                self._runs.append(self._open_run(name, present))
        self._set_runs(self._runs)
        for name in set(present).difference(valid_names):
            self._disk.remove(f"{self._directory}/{name}")

    def close(self) -> None:
        """Close the files and forget everything; no ``write`` may be running."""
        pending = [pending for pending in (self._snapshot, self._merge) if pending is not None]
        written = [pending.run for pending in pending if pending.run is not None]
        for run in (*self._runs, *self._garbage, *written):
            run.close()
        self._reset()

    def add(self, key_hash: int, log_offset: int) -> None:
        """Record that the message at ``log_offset`` has a key with this hash."""
        self._hashes.append(key_hash)
        self._offsets.append(log_offset)

    def extend(self, hashes: Sequence[int], offsets: Sequence[int]) -> None:
        """Add many entries; fastest with arrays of type "I" and "Q"."""
        assert len(hashes) == len(offsets), "a hash without its offset"
        # Extending from an array, even one built from a list, is twice as fast as item by item.
        self._hashes.extend(array("I", hashes))
        self._offsets.extend(array("Q", offsets))

    def find(
        self, key_hash: int, *, low: int = 0, high: int = OFFSET_END, limit: int = 1_000
    ) -> list[int]:
        """Return log offsets in ``[low, high)`` with this hash, newest first.

        Returns at most ``limit`` and never more than ``found_max`` offsets. For older ones, call
        again with ``high`` set to the last offset found.
        """
        limit = min(limit, self._limits.found_max)
        low = max(low, self._low)
        if limit <= 0 or low >= high:
            return []
        found: set[int] = set()
        for columns in (KeyColumns(self._hashes, self._offsets), self._frozen):
            if columns is not None:
                found.update(columns.find(key_hash, low, high, limit))
        for run in self._runs:
            if len(found) >= limit:
                found = set(nlargest(limit, found))
                low = min(found)
            if run.highest < low:
                break
            if run.lowest < high:
                found.update(run.find(key_hash, low, high, limit))
        return nlargest(limit, found)

    @property
    def unfiled_bytes(self) -> int:
        """Roughly how many bytes a snapshot would write."""
        return len(self._hashes) * ENTRY_BYTES

    def snapshot_due(self) -> bool:
        """Whether memory holds so many entries that a checkpoint should be taken now."""
        return len(self._hashes) >= self._limits.active_entries_max

    def snapshot(self) -> PendingRun | None:
        """Return everything added so far as a run to write; None if there is nothing new."""
        assert self._snapshot is None, "the last snapshot was not installed"
        if not self._hashes:
            return None
        if len(self._runs) >= self._limits.runs_max:
            raise Unavailable("key_index_runs_limit", "merge first", runs_max=self._limits.runs_max)
        self._frozen = KeyColumns(self._hashes, self._offsets)
        self._hashes, self._offsets = array("I"), array("Q")
        self._snapshot = self._pending(self._frozen.sorted_pieces, ())
        return self._snapshot

    def merge_due(self) -> bool:
        """Whether ``merge`` would return a run to write."""
        return self._merge is None and bool(self._mergeable())

    def merge_bytes(self) -> int:
        """Roughly how many bytes ``merge`` will write."""
        return sum(run.count for run in self._mergeable()) * ENTRY_BYTES

    def merge(self) -> PendingRun | None:
        """Return the oldest runs of a full size class as one run to write; None if none is full."""
        assert self._merge is None, "the last merge was not installed"
        runs, low = self._mergeable(), self._low
        if runs:
            self._merge = self._pending(lambda: merged(runs, low), runs)
        return self._merge

    def install(self, pending: PendingRun) -> None:
        """From now on, search the written run instead of the entries or runs it was made from."""
        run = pending.run
        assert run is not None, "it was not written"
        if pending is self._snapshot:
            self._snapshot = self._frozen = None
        else:
            assert pending is self._merge, "it was not asked for, or is installed"
            self._merge = None
        # ``forget_below`` may have dropped some of the merged runs meanwhile.
        replaced = [old for old in pending.replaces if old in self._runs]
        self._garbage.extend(replaced)
        self._set_runs([run, *(old for old in self._runs if old not in replaced)])

    def names(self) -> list[str]:
        """Names of the runs, which hold everything added before the last installed snapshot."""
        return sorted(run.name for run in self._runs)

    def forget_below(self, log_offset: int) -> None:
        """Drop entries below ``log_offset``, where the log is deleted, and runs that end there."""
        self._low = max(self._low, log_offset)
        self._set_runs(self._runs)

    def garbage(self) -> list[str]:
        """Names of files that are no longer searched but that an earlier checkpoint may name."""
        return sorted(run.name for run in self._garbage)

    def discard(self, valid_names: Collection[str]) -> list[KeyRun]:
        """Forget and return the garbage runs that no checkpoint names, for ``remove_runs``."""
        in_use = self._merge.replaces if self._merge is not None else ()
        removed = [r for r in self._garbage if r.name not in valid_names and r not in in_use]
        self._garbage = [run for run in self._garbage if run not in removed]
        return removed

    def _open_run(self, name: str, present: Collection[str]) -> KeyRun:
        path = f"{self._directory}/{name}"
        if name not in present:
            raise damaged(path, "it is missing")
        return open_run(self._disk, path)

    def _set_runs(self, runs: Iterable[KeyRun]) -> None:
        runs = sorted(runs, key=lambda run: run.highest, reverse=True)
        self._runs = [run for run in runs if run.highest >= self._low]
        self._garbage.extend(runs[len(self._runs) :])

    def _mergeable(self) -> tuple[KeyRun, ...]:
        classes: dict[int, list[KeyRun]] = {}
        for run in reversed(self._runs):
            # Size classes are powers of eight: eight merged runs make one run of the next class.
            size_class = max(run.count, self._limits.small_entries).bit_length() // 3
            classes.setdefault(size_class, []).append(run)
        for _, runs in sorted(classes.items()):
            oldest = runs[: self._limits.merge_runs]
            entry_count = sum(run.count for run in oldest)
            is_full = len(oldest) == self._limits.merge_runs
            if is_full and entry_count <= self._limits.run_entries_max:
                return tuple(oldest)
        return ()

    def _pending(
        self, pieces: Callable[[], Iterator[Entries]], replaces: tuple[KeyRun, ...]
    ) -> PendingRun:
        path = f"{self._directory}/{self._next_number:020}.run"
        self._next_number += 1
        return PendingRun(self._disk, path, pieces, replaces)


def remove_runs(disk: Disk, runs: Iterable[KeyRun]) -> None:
    """Delete the files of discarded runs. May run in any thread."""
    for run in runs:
        run.close()
        disk.remove(run.path)


class PendingRun:
    """A run that waits to be written or, once written, to be installed."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        pieces: Callable[[], Iterator[Entries]],
        replaces: tuple[KeyRun, ...],
    ) -> None:
        self._disk = disk
        self._path = path
        self._pieces = pieces
        #: The runs that this run merges.
        self.replaces = replaces
        #: Set once the file is durable.
        self.run: KeyRun | None = None

    def write(self) -> None:
        """Write the file; it is durable under its name on return. May run in any thread."""
        self.run = write_run(self._disk, self._path, self._pieces())
