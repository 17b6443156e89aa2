"""The key index: nothing is lost, nothing is ahead of the checkpoint, damage is seen."""

from __future__ import annotations

import errno
import threading
import zlib
from array import array
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from escrowmq.model.errors import StoreCorrupt, StoreUnusable, Unavailable
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.index.key_index import (
    KeyIndex,
    KeyIndexLimits,
    PendingRun,
    key_hash,
    remove_runs,
)
from escrowmq.store.index.key_run import BLOCK_ENTRIES, HEADER_BYTES, PIECE_BLOCKS
from escrowmq.testing.faulty_disk import DiskCall, FaultyDisk
from escrowmq.testing.survivors import RandomSubset, everything_survives, nothing_survives

PIECE_ENTRIES = PIECE_BLOCKS * BLOCK_ENTRIES
FIRST_RUN = f"keyindex/{1:020}.run"


def opened(disk: FaultyDisk | OsDisk, *names: str, **limits: int) -> KeyIndex:
    index = KeyIndex(disk, limits=KeyIndexLimits(**limits))
    index.open(names)
    return index


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


def collect(index: KeyIndex, valid_names: Collection[str]) -> int:
    """Remove runs that no checkpoint names; return how many files."""
    runs = index.discard(valid_names)
    remove_runs(index._disk, runs)
    return len(runs)


def checkpoint(index: KeyIndex) -> list[str]:
    """Checkpoint the index as the broker does; return the names that the checkpoint holds."""
    pending = index.snapshot()
    if pending is not None:
        pending.write()
        index.install(pending)
    names = index.names()
    collect(index, names)
    return names


def merge(index: KeyIndex) -> None:
    pending = index.merge()
    assert pending is not None
    pending.write()
    index.install(pending)


def files(disk: FaultyDisk) -> list[str]:
    return disk.list("keyindex")


def some_runs(index: KeyIndex, count: int, *, start: int = 0) -> None:
    """Make runs of three entries each: hash 7 at two offsets, and one hash of its own."""
    for number in range(start, start + count):
        index.extend((7, 7, 1_000 + number), (10 * number, 10 * number + 1, 10 * number + 2))
        checkpoint(index)


# Adding and finding


def test_a_key_is_known_by_the_crc_of_its_utf8_bytes() -> None:
    assert key_hash("größe") == zlib.crc32("größe".encode())


def test_added_keys_are_found_newest_first(disk: FaultyDisk) -> None:
    index = opened(disk)
    index.add(7, 100)
    index.add(8, 200)
    index.extend(array("I", [7, 7]), array("Q", [300, 400]))
    assert index.find(7) == [400, 300, 100]
    assert index.find(8) == [200]
    assert index.find(9) == []


def test_an_entry_is_found_wherever_it_is(disk: FaultyDisk) -> None:
    """In a run, in a snapshot that is being written, and in entries added after it."""
    index = opened(disk)
    index.add(7, 1)
    checkpoint(index)
    index.add(7, 2)
    pending = index.snapshot()
    assert pending is not None
    index.add(7, 3)
    assert index.find(7) == [3, 2, 1]
    pending.write()
    assert index.find(7) == [3, 2, 1]
    index.install(pending)
    assert index.find(7) == [3, 2, 1]


def test_a_search_is_bounded_by_offsets_and_by_number(disk: FaultyDisk) -> None:
    index = opened(disk, found_max=4)
    for offset in range(0, 60, 10):
        index.add(7, offset)
        if offset in {10, 30}:
            checkpoint(index)
    assert index.find(7, limit=1) == [50]
    assert index.find(7, limit=3) == [50, 40, 30]
    assert index.find(7) == [50, 40, 30, 20]  # found_max
    assert index.find(7, low=30) == [50, 40, 30]
    assert index.find(7, low=31) == [50, 40]
    assert index.find(7, high=20) == [10, 0]
    assert index.find(7, high=1) == [0]
    assert index.find(7, low=10, high=31) == [30, 20, 10]
    assert index.find(7, low=30, high=30) == []
    assert index.find(7, limit=0) == []


def test_a_pair_that_was_added_twice_is_found_once(disk: FaultyDisk) -> None:
    """A message may carry the same key twice."""
    index = opened(disk, merge_runs=2, small_entries=1)
    for _ in range(2):
        index.extend((7, 7, 7), (5, 5, 4))
        assert index.find(7, limit=2) == [5, 4]
        checkpoint(index)
        assert index.find(7, limit=2) == [5, 4]
    merge(index)
    assert index.find(7, limit=2) == [5, 4]


def test_runs_of_many_blocks_are_searched_at_every_block_boundary(disk: FaultyDisk) -> None:
    index = opened(disk)
    count = 3 * BLOCK_ENTRIES + 5
    index.extend(range(10, 10 + 2 * count, 2), range(count))
    checkpoint(index)
    for position in (0, 1, BLOCK_ENTRIES - 1, BLOCK_ENTRIES, 2 * BLOCK_ENTRIES, count - 1):
        assert index.find(10 + 2 * position) == [position]
        assert index.find(9 + 2 * position) == []
    assert index.find(10 + 2 * count) == []
    assert index.find(2**32 - 1) == []


@pytest.mark.parametrize("count", [1, BLOCK_ENTRIES - 1, BLOCK_ENTRIES, 2 * BLOCK_ENTRIES])
def test_a_run_may_end_anywhere_in_a_block_or_with_it(disk: FaultyDisk, count: int) -> None:
    index = opened(disk)
    index.extend(range(count), range(count))
    checkpoint(index)
    assert disk.open(FIRST_RUN).size() == HEADER_BYTES + 12 * count
    index = opened(disk, *index.names())
    assert index.find(0) == [0]
    assert index.find(count - 1) == [count - 1]
    assert index.find(count) == []


def test_the_greatest_and_the_smallest_values_are_kept(disk: FaultyDisk) -> None:
    index = opened(disk)
    index.extend((0, 2**32 - 1, 2**32 - 1), (2**63 - 1, 0, 2**63 - 1))
    checkpoint(index)
    assert index.find(0) == [2**63 - 1]
    assert index.find(2**32 - 1) == [2**63 - 1, 0]


@pytest.mark.parametrize("before", [0, 1, BLOCK_ENTRIES - 1, BLOCK_ENTRIES, BLOCK_ENTRIES + 1])
def test_a_key_of_many_messages_spans_blocks_and_can_be_paged(
    disk: FaultyDisk, before: int
) -> None:
    index = opened(disk)
    count = 3 * BLOCK_ENTRIES
    index.extend([7] * count, range(count))
    index.extend([1] * before, range(count, count + before))
    index.extend([9] * 10, range(count + before, count + before + 10))
    checkpoint(index)
    newest_first = list(range(count))[::-1]
    assert index.find(7, limit=10_000) == newest_first
    assert index.find(7, limit=1_500) == newest_first[:1_500]
    assert index.find(7, low=count - 5) == newest_first[:5]
    found: list[int] = []
    while page := index.find(7, high=found[-1] if found else count, limit=700):
        found += page
    assert found == newest_first


@pytest.mark.parametrize(
    ("low", "high", "found"), [(0, 100, [99, 98, 97]), (60_000, 2**63, [60_001, 60_000])]
)
def test_a_search_in_a_run_of_one_hash_reads_few_blocks(
    disk: FaultyDisk, low: int, high: int, found: list[int]
) -> None:
    """However many messages share a key, finding a few of them stays cheap."""
    index = opened(disk)
    index.extend([7] * 60_002, range(60_002))
    checkpoint(index)
    disk.fail_after(DiskCall.READ, 12, errno.EIO, times=None)
    assert index.find(7, low=low, high=high, limit=3) == found


def test_runs_below_what_was_found_already_are_not_read(disk: FaultyDisk) -> None:
    index = opened(disk)
    some_runs(index, 3)
    disk.fail_after(DiskCall.READ, 2, errno.EIO, times=None)
    assert index.find(7, limit=2) == [21, 20]


def test_the_newest_are_found_in_runs_whose_offsets_overlap(disk: FaultyDisk) -> None:
    """Merged runs need not be adjacent."""
    index = opened(disk)
    for offsets in ((0, 100), (50, 60), (55,)):
        index.extend([7] * len(offsets), offsets)
        checkpoint(index)
    assert index.find(7, limit=2) == [100, 60]
    assert index.find(7, limit=3) == [100, 60, 55]
    assert index.find(7, limit=1) == [100]


def test_memory_asks_for_a_snapshot_before_it_grows_too_large(disk: FaultyDisk) -> None:
    index = opened(disk, active_entries_max=2)
    index.add(7, 1)
    assert not index.snapshot_due()
    index.add(7, 2)
    assert index.snapshot_due()
    checkpoint(index)
    assert not index.snapshot_due()


# Checkpoints and recovery


def test_nothing_new_needs_no_snapshot(disk: FaultyDisk) -> None:
    assert opened(disk).snapshot() is None
    assert files(disk) == []


def test_an_index_of_the_checkpoints_names_is_what_it_was(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    index = opened(disk)
    some_runs(index, 3)
    names = checkpoint(index)
    index.close()
    index = opened(disk, *names)
    assert index.names() == names
    assert index.find(7) == [21, 20, 11, 10, 1, 0]
    index.close()


def test_runs_ahead_of_the_checkpoint_are_removed(disk: FaultyDisk) -> None:
    """The records they point to may not be in the log that survived."""
    index = opened(disk)
    some_runs(index, 1)
    names = index.names()
    some_runs(index, 1, start=1)
    index.add(7, 99)
    assert len(files(disk)) == 2
    index = opened(disk, *names)
    assert files(disk) == names
    assert index.find(7) == [1, 0]
    # Its number is not reused, in case the removal does not survive.
    some_runs(index, 1, start=2)
    assert index.names()[-1] == f"{3:020}.run"


@pytest.mark.parametrize(
    "survivors", [nothing_survives, everything_survives, *map(RandomSubset, range(5))]
)
def test_a_checkpoint_survives_a_power_cut(disk: FaultyDisk, survivors: RandomSubset) -> None:
    index = opened(disk)
    some_runs(index, 2)
    names = index.names()
    index.add(7, 99)
    pending = index.snapshot()
    assert pending is not None
    disk.fail_after(DiskCall.FLUSH, 0, errno.EIO)
    with pytest.raises(OSError, match="error"):
        pending.write()
    after = disk.crash(survivors)
    index = opened(after, *names)
    assert index.find(7) == [11, 10, 1, 0]
    assert files(after) == names


def test_an_installed_run_needs_nothing_more_to_be_durable(disk: FaultyDisk) -> None:
    index = opened(disk)
    some_runs(index, 1)
    index = opened(disk.crash(nothing_survives), *index.names())
    assert index.find(7) == [1, 0]


@pytest.mark.parametrize(
    "kind",
    [DiskCall.CREATE, DiskCall.WRITE, DiskCall.FLUSH, DiskCall.RENAME, DiskCall.FLUSH_DIRECTORY],
)
def test_a_write_that_failed_can_be_tried_again(disk: FaultyDisk, kind: DiskCall) -> None:
    index = opened(disk)
    index.add(7, 1)
    pending = index.snapshot()
    assert pending is not None
    disk.fail_after(kind, 0, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        pending.write()
    assert index.find(7) == [1]
    assert index.names() == []
    pending.write()
    index.install(pending)
    index = opened(disk.crash(nothing_survives), *index.names())
    assert index.find(7) == [1]


def test_a_run_may_be_written_by_another_thread(tmp_path: Path) -> None:
    index = opened(OsDisk(tmp_path))
    index.extend(range(100_000), range(100_000))
    pending = index.snapshot()
    assert pending is not None
    thread = threading.Thread(target=pending.write)
    thread.start()
    while thread.is_alive():
        index.add(7, 200_000)
        assert index.find(7)[-1] == 7
    thread.join()
    index.install(pending)
    assert index.find(99_999) == [99_999]
    index.close()


def test_closing_gives_back_what_was_written_and_not_installed(tmp_path: Path) -> None:
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    index = opened(OsDisk(tmp_path), merge_runs=2)
    some_runs(index, 2)
    index.add(7, 1)
    for pending in (index.snapshot(), index.merge()):
        assert pending is not None
        pending.write()
    index.close()
    index = opened(OsDisk(tmp_path))
    index.add(7, 1)
    assert index.snapshot() is not None  # Never written, so it has no file.
    index.close()
    assert len(list(descriptors.iterdir())) == before


# Damage


def damaged_at_open(disk: FaultyDisk, *names: str) -> str:
    with pytest.raises(StoreCorrupt) as raised:
        opened(disk, *names)
    assert raised.value.code == "key_index_damaged"
    return str(raised.value.fields["path"])


def test_a_missing_run_is_damage_and_the_rest_is_left_alone(disk: FaultyDisk) -> None:
    index = opened(disk)
    some_runs(index, 2)
    names = index.names()
    disk.remove(f"keyindex/{names[1]}")
    assert damaged_at_open(disk, *names) == f"keyindex/{names[1]}"
    assert files(disk) == names[:1]
    assert damaged_at_open(disk, "../elsewhere") == "keyindex/../elsewhere"


@pytest.mark.parametrize("kept_bytes", [0, 7, 8, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 35])
def test_a_run_cut_short_is_damage(disk: FaultyDisk, kept_bytes: int) -> None:
    index = opened(disk)
    some_runs(index, 1)
    disk.open(FIRST_RUN).truncate(kept_bytes)
    assert damaged_at_open(disk, *index.names()) == FIRST_RUN


def test_a_run_with_trailing_bytes_is_damage(disk: FaultyDisk) -> None:
    index = opened(disk)
    some_runs(index, 1)
    file = disk.open(FIRST_RUN)
    file.write_at(file.size(), b"x")
    assert damaged_at_open(disk, *index.names()) == FIRST_RUN


def test_every_flipped_bit_is_damage(disk: FaultyDisk) -> None:
    index = opened(disk)
    some_runs(index, 1)
    size = disk.open(FIRST_RUN).size()
    for byte_offset in (*range(40), 2_000, *range(HEADER_BYTES - 5, size)):
        disk.flip_bit(FIRST_RUN, byte_offset, byte_offset % 8)
        assert damaged_at_open(disk, *index.names()) == FIRST_RUN
        disk.flip_bit(FIRST_RUN, byte_offset, byte_offset % 8)
    assert opened(disk, *index.names()).find(7) == [1, 0]


def test_a_damaged_index_can_be_built_again_in_place(disk: FaultyDisk) -> None:
    index = opened(disk)
    some_runs(index, 2)
    disk.flip_bit(FIRST_RUN, HEADER_BYTES, 0)
    with pytest.raises(StoreCorrupt):
        index.open(index.names())
    index.open(())
    assert files(disk) == []
    index.add(7, 1)
    checkpoint(index)
    assert index.find(7) == [1]


def test_a_run_that_becomes_shorter_while_it_is_open_is_damage(disk: FaultyDisk) -> None:
    index = opened(disk)
    some_runs(index, 1)
    disk.open(FIRST_RUN).truncate(HEADER_BYTES + 4)
    with pytest.raises(StoreCorrupt, match="key_index_damaged"):
        index.find(7)


def test_an_unknown_version_is_not_damage(disk: FaultyDisk) -> None:
    index = opened(disk)
    some_runs(index, 1)
    file = disk.open(FIRST_RUN)
    content = bytearray(file.read_at(0, file.size()))
    content[8] = 2
    checksum = zlib.crc32(content[: HEADER_BYTES - 4], zlib.crc32(content[HEADER_BYTES:]))
    content[HEADER_BYTES - 4 : HEADER_BYTES] = checksum.to_bytes(4, "little")
    file.write_at(0, content)
    with pytest.raises(StoreUnusable, match=r"key_index_version_unknown.*version=2"):
        opened(disk, *index.names())
    assert files(disk) == index.names()


@pytest.mark.parametrize("name", ["notes.txt", "1.run", f"{1:020}.run.old"])
def test_a_foreign_file_is_neither_opened_nor_removed(disk: FaultyDisk, name: str) -> None:
    disk.make_directory("keyindex")
    disk.open(f"keyindex/{name}", create=True)
    with pytest.raises(StoreUnusable, match=f"key_index_foreign.*{name}"):
        opened(disk)
    assert files(disk) == [name]


def test_the_bytes_of_a_run_are_these(disk: FaultyDisk) -> None:
    """Every later version must read the bytes that this one writes."""
    index = opened(disk)
    index.extend((0x0B, 0x0A, 0x0B), (0x30, 0x20, 0x10))
    checkpoint(index)
    file = disk.open(FIRST_RUN)
    assert file.read_at(0, 40) == (
        b"EMQKEYS\0"
        + bytes.fromhex("01000000 0300000000000000 1000000000000000 3000000000000000 00000000")
    )
    assert file.read_at(HEADER_BYTES, 99) == bytes.fromhex(
        "0A000000 0B000000 0B000000 2000000000000000 1000000000000000 3000000000000000"
    )
    assert file.read_at(HEADER_BYTES - 4, 4) == bytes.fromhex("C29879AB")


# Merging and retention


def test_eight_runs_of_a_size_are_merged_into_one(disk: FaultyDisk) -> None:
    index = opened(disk)
    some_runs(index, 7)
    assert not index.merge_due()
    assert index.merge() is None
    some_runs(index, 1, start=7)
    expected = index.find(7)
    assert index.merge_due()
    merge(index)
    assert not index.merge_due()
    assert len(index.names()) == 1
    assert index.find(7) == expected
    assert [index.find(1_000 + number) for number in range(8)] == [
        [10 * number + 2] for number in range(8)
    ]


def test_runs_of_different_sizes_are_not_merged(disk: FaultyDisk) -> None:
    index = opened(disk, merge_runs=2, small_entries=1)
    for count in (1, 8, 64):
        index.extend(range(count), range(count))
        checkpoint(index)
    assert not index.merge_due()
    index.extend(range(9), range(9))
    checkpoint(index)
    assert index.merge_due()
    merge(index)
    # The runs of 8 and 9 entries became one of 9, because 8 pairs are the same.
    assert len(index.names()) == 3


def test_a_merge_that_would_make_too_large_a_run_is_never_due(disk: FaultyDisk) -> None:
    index = opened(disk, merge_runs=2, run_entries_max=5)
    some_runs(index, 2)
    assert not index.merge_due()


def test_a_long_merge_holds_only_pieces_in_memory_and_loses_nothing(disk: FaultyDisk) -> None:
    """One run ends early, one has gaps, one has a key that fills more than a piece."""
    index = opened(disk, merge_runs=3, found_max=200_000)
    many = PIECE_ENTRIES + 3 * BLOCK_ENTRIES + 7
    dense, sparse, hot = range(many), range(0, 10 * many, 10), [5_000] * many
    for number, hashes in enumerate((dense, sparse, hot)):
        index.extend(hashes, range(number, number + 3 * many, 3))
        checkpoint(index)
    merge(index)
    assert len(index.names()) == 1
    for index_now in (index, opened(disk, *index.names(), found_max=200_000)):
        assert index_now.find(5_000, limit=200_000) == sorted(
            [*range(2, 2 + 3 * many, 3), 15_000, 1_501], reverse=True
        )
        for wanted in (*range(0, many, 1_999), *range(0, 10 * many, 19_990), 10 * many):
            expected = [3 * wanted] if wanted < many else []
            if wanted % 10 == 0 and wanted < 10 * many:
                expected.append(3 * wanted // 10 + 1)
            assert index_now.find(wanted) == sorted(expected, reverse=True)


def test_a_merged_run_survives_a_power_cut_and_so_do_its_parts(disk: FaultyDisk) -> None:
    """The valid checkpoint may be the one before the merge or the one after it."""
    index = opened(disk, merge_runs=3)
    some_runs(index, 3)
    before = index.names()
    expected = index.find(7)
    merge(index)
    after = index.names()
    assert index.garbage() == before
    for names in (before, after):
        crashed = disk.crash(nothing_survives)
        assert opened(crashed, *names).find(7) == expected
        assert files(crashed) == names


def test_old_runs_are_removed_once_no_checkpoint_names_them(disk: FaultyDisk) -> None:
    index = opened(disk, merge_runs=3)
    some_runs(index, 3)
    before = index.names()
    merge(index)
    assert collect(index, before) == 0
    assert files(disk) == [*before, *index.names()]
    assert collect(index, index.names()) == 3
    assert files(disk) == index.names()
    assert index.garbage() == []


def test_one_merge_runs_at_a_time(disk: FaultyDisk) -> None:
    index = opened(disk, merge_runs=2)
    some_runs(index, 4)
    pending = index.merge()
    assert pending is not None
    assert not index.merge_due()
    pending.write()
    index.install(pending)
    assert index.merge_due()


def test_too_many_runs_stop_the_checkpoints(disk: FaultyDisk) -> None:
    index = opened(disk, runs_max=2)
    some_runs(index, 2)
    index.add(7, 99)
    with pytest.raises(Unavailable, match="key_index_runs_limit"):
        index.snapshot()
    assert index.find(7)[0] == 99


def test_keys_of_deleted_messages_are_not_found_and_their_runs_are_dropped(
    disk: FaultyDisk,
) -> None:
    index = opened(disk)
    some_runs(index, 3)
    names = index.names()
    index.forget_below(12)
    assert index.find(7) == [21, 20]
    assert index.names() == names[1:]  # Run 1 ends at 12, which is still there.
    index.forget_below(13)
    assert index.names() == names[2:]
    index.forget_below(21)
    index.forget_below(5)  # A lower bound has no effect.
    assert index.find(7) == [21]
    assert index.garbage() == names[:2]
    assert collect(index, index.names()) == 2
    assert files(disk) == names[2:]


def test_a_merge_leaves_out_what_the_log_has_deleted(disk: FaultyDisk) -> None:
    index = opened(disk, merge_runs=2)
    some_runs(index, 2)
    index.forget_below(2)
    merge(index)
    assert disk.open(f"keyindex/{index.names()[0]}").size() == HEADER_BYTES + 4 * 12
    assert index.find(7) == [11, 10]


def test_runs_forgotten_while_they_are_merged_stay_until_it_is_done(disk: FaultyDisk) -> None:
    index = opened(disk, merge_runs=2)
    some_runs(index, 2)
    pending = index.merge()
    assert pending is not None
    index.forget_below(10)
    assert len(index.garbage()) == 1
    assert collect(index, index.names()) == 0
    pending.write()
    index.install(pending)
    assert index.find(7) == [11, 10]
    assert collect(index, index.names()) == 2


def test_a_run_forgotten_before_it_is_installed_is_garbage_at_once(disk: FaultyDisk) -> None:
    index = opened(disk, merge_runs=2)
    some_runs(index, 2)
    index.add(7, 30)
    for pending in (index.merge(), index.snapshot()):
        assert pending is not None
        pending.write()
        index.forget_below(31)
        index.install(pending)
    assert index.names() == []
    assert collect(index, ()) == 4
    assert files(disk) == []


# Against a model

HASHES = st.integers(0, 3)


class AnyOrder(RuleBasedStateMachine):
    """Compares the index with a dict of lists, including checkpoints and power cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyDisk()
        self.limits = KeyIndexLimits(merge_runs=2, small_entries=4)
        self.index = KeyIndex(self.disk, limits=self.limits)
        self.index.open(())
        self.end = 0
        self.model: dict[int, list[int]] = {}
        self.low = 0
        self.pending: PendingRun | None = None
        self.in_snapshot: dict[int, list[int]] = {}
        self.merging: PendingRun | None = None
        self.checkpoint: tuple[list[str], dict[int, list[int]]] = ([], {})

    def copy(self) -> dict[int, list[int]]:
        return {wanted: list(offsets) for wanted, offsets in self.model.items()}

    @rule(hashes=st.lists(HASHES, min_size=1, max_size=5))
    def add(self, hashes: list[int]) -> None:
        for wanted in hashes:
            self.index.add(wanted, self.end)
            self.model.setdefault(wanted, []).append(self.end)
            self.end += 3

    @rule(wanted=HASHES, count=st.sampled_from([1, 1_023, 1_024, 2_500]))
    def add_many(self, wanted: int, count: int) -> None:
        offsets = range(self.end, self.end + 3 * count, 3)
        self.index.extend([wanted] * count, offsets)
        self.model.setdefault(wanted, []).extend(offsets)
        self.end += 3 * count

    @precondition(lambda self: self.pending is None)
    @rule()
    def snapshot(self) -> None:
        self.in_snapshot = self.copy()
        self.pending = self.index.snapshot()

    @precondition(lambda self: self.pending is not None)
    @rule(fails=st.booleans())
    def write_and_install_the_snapshot(self, fails: bool) -> None:  # noqa: FBT001
        assert self.pending is not None
        if fails:
            self.disk.fail_after(DiskCall.FLUSH, 0, errno.EIO)
            with pytest.raises(OSError, match="error"):
                self.pending.write()
            return
        self.pending.write()
        self.index.install(self.pending)
        self.pending = None
        names = self.index.names()
        self.checkpoint = (names, self.in_snapshot)
        collect(self.index, names)
        assert set(self.disk.list("keyindex")) >= set(names)

    @precondition(lambda self: self.merging is None and self.index.merge_due())
    @rule()
    def merge(self) -> None:
        self.merging = self.index.merge()
        assert self.merging is not None

    @precondition(lambda self: self.merging is not None)
    @rule()
    def write_and_install_the_merge(self) -> None:
        assert self.merging is not None
        self.merging.write()
        self.index.install(self.merging)
        self.merging = None

    @rule(share=st.floats(0, 1))
    def forget(self, share: float) -> None:
        self.low = max(self.low, int(self.end * share))
        self.index.forget_below(self.low)

    @rule(seed=st.integers(0, 2**16))
    def cut_the_power(self, seed: int) -> None:
        self.index.close()
        self.disk = self.disk.crash(RandomSubset(seed))
        names, self.model = self.checkpoint
        self.model = self.copy()
        self.index = KeyIndex(self.disk, limits=self.limits)
        self.index.open(names)
        self.index.forget_below(self.low)
        self.pending = self.merging = None
        assert self.disk.list("keyindex") == names

    @invariant()
    def everything_is_found(self) -> None:
        for wanted in range(4):
            offsets = self.model.get(wanted, [])[::-1]
            expected = [offset for offset in offsets if offset >= self.low]
            assert self.index.find(wanted, limit=10_000) == expected[:10_000]
            assert self.index.find(wanted, limit=3) == expected[:3]
            middle = self.end // 2
            older = [offset for offset in expected if offset < middle]
            assert self.index.find(wanted, high=middle, limit=5) == older[:5]
            newer = [offset for offset in expected if offset >= middle]
            assert self.index.find(wanted, low=middle, limit=1_500) == newer[:1_500]


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
