"""The state table's files: never changed, named by a checkpoint, refused when damaged."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.store.disk.rows import STATE_ROW, Rows
from escrowmq.store.table import state_files
from escrowmq.store.table.chunk import COLUMNS
from escrowmq.store.table.frozen_chunk import FrozenChunk
from escrowmq.store.table.state_files import (
    DIRECTORY,
    ChunkFile,
    SavedSurvivors,
    StateFiles,
    StateSnapshot,
    Survivor,
)
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import nothing_survives
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST, Half

CHUNK_ROWS = 8
ROW_BYTES = STATE_ROW.itemsize


def rows_from(first: int, count: int, op_offsets: dict[int, int] | None = None) -> Rows:
    rows = np.zeros(count, dtype=STATE_ROW)
    numbers = np.arange(first, first + count)
    rows["log_offset"] = rows["location"] = 100 * numbers
    rows["size"] = 100
    rows["stored_at_ms"] = 1_000 + numbers
    rows["part"] = FIRST | 1
    rows["op_offset"] = -1
    for row, op_offset in (op_offsets or {}).items():
        rows["op_offset"][row - first] = op_offset
    return rows


def saved(survivors: list[Survivor]) -> SavedSurvivors:
    return SavedSurvivors(
        {one.half.half_offset: one.half for one in survivors},
        {one.half.half_offset: one.id_hash for one in survivors},
    )


def snapshot(
    chunks: dict[int, Rows] | None = None, survivors: list[Survivor] | None = None
) -> StateSnapshot:
    frozen = {
        base: FrozenChunk(
            base=base,
            columns={name: rows[name] for name, _ in COLUMNS},
            locations=rows["location"],
        )
        for base, rows in (chunks or {}).items()
    }
    decided = [
        (base + int(at), 1, int(rows["op_offset"][at]))
        for base, rows in (chunks or {}).items()
        for at in np.flatnonzero(rows["op_offset"] >= 0)
    ]
    firsts, counts, op_offsets = np.array(decided, dtype=np.int64).reshape(-1, 3).T
    return StateSnapshot(
        chunks=frozen,
        survivors=None if survivors is None else saved(survivors),
        dropped=[],
        ops=(firsts, counts, op_offsets),
    )


def survivor(row: int, **fields: object) -> Survivor:
    half = Half(
        half_offset=row,
        log_offset=100 * row,
        location=100 * row,
        size=100,
        crc=7,
        stored_at_ms=5,
        origin=2**32 - 1,
        queue=3,
        tags=-9,
        part=FIRST | 1,
        state=State.PARKED,
        checks_sent=255,
        next_at_ms=NEVER,
        op_offset=-1,
    )
    return Survivor(msgspec.structs.replace(half, **fields), 2**32 - row)


@pytest.fixture
def disk() -> FaultyDisk:
    disk = FaultyDisk()
    disk.make_directory(DIRECTORY)
    return disk


@pytest.fixture
def files(disk: FaultyDisk) -> StateFiles:
    return StateFiles(disk, CHUNK_ROWS)


def opened(disk: FaultyDisk, files: StateFiles) -> StateFiles:
    """Open the files as a checkpoint would name them."""
    again = StateFiles(disk, CHUNK_ROWS)
    again.chunks = list(files.chunks)
    again.survivors_generation = files.survivors_generation
    again.survivors_count = files.survivors_count
    return again


def test_rows_are_read_back_and_durable(disk: FaultyDisk, files: StateFiles) -> None:
    files.write(snapshot({8: rows_from(8, 8), 16: rows_from(16, 3)}))
    again = opened(disk.crash(nothing_survives), files)
    assert again.rows(8, 2, 4)["log_offset"].tolist() == [1_000, 1_100, 1_200, 1_300]
    half = again.half(17)
    assert (half.half_offset, half.log_offset, half.stored_at_ms) == (17, 1_700, 1_017)
    assert half.state is State.PREPARED


def test_a_file_is_never_changed(disk: FaultyDisk, files: StateFiles) -> None:
    files.write(snapshot({0: rows_from(0, 3)}))
    before = opened(disk, files)
    files.write(snapshot({0: rows_from(0, 8)}))
    assert [chunk.generation for chunk in files.chunks] == [1]
    assert before.rows(0, 0, 3)["log_offset"].tolist() == [0, 100, 200]
    assert files.rows(0, 7, 1)["log_offset"].tolist() == [700]


def test_the_decisions_of_earlier_checkpoints_are_kept(files: StateFiles) -> None:
    files.write(snapshot({0: rows_from(0, 3, {0: 900, 2: 950})}))
    files.write(snapshot({0: rows_from(0, 5, {1: 990, 4: 999})}))
    files.write(snapshot({0: rows_from(0, 6)}))
    assert files.rows(0, 0, 6)["op_offset"].tolist() == [900, 990, 950, -1, 999, -1]


def test_the_file_before_is_not_even_read_if_every_decision_is_known(
    disk: FaultyDisk, files: StateFiles
) -> None:
    files.write(snapshot({0: rows_from(0, 2, {0: 900, 1: 950})}))
    disk.remove(f"{DIRECTORY}/{files.chunks[0].name}")
    files.write(snapshot({0: rows_from(0, 3, {0: 900, 1: 950})}))
    assert files.rows(0, 0, 3)["op_offset"].tolist() == [900, 950, -1]


def test_rows_are_found_by_their_identity_in_the_log(files: StateFiles) -> None:
    files.write(snapshot({16: rows_from(16, 3), 8: rows_from(8, 8)}))
    assert [files.row_at(100 * row) for row in range(8, 19)] == list(range(8, 19))
    for nothing in (0, 799, 801, 1_599, 1_601, 1_900, 10**9):
        assert files.row_at(nothing) is None


def test_a_chunk_that_begins_with_unknown_rows_is_found_by_its_first_known_one(
    disk: FaultyDisk, files: StateFiles
) -> None:
    """After a deleted prefix, the first rows hold no message."""
    rows = rows_from(8, 6)
    for name in ("log_offset", "location", "size"):
        rows[name][:3] = 0
    files.write(snapshot({8: rows, 16: rows_from(16, 2)}))
    again = opened(disk, files)
    assert again.chunks[0] == ChunkFile(8, 0, 6, 1_100, 1_300)
    assert again.row_at(1_100) == 11
    assert again.row_at(1_300) == 13
    assert again.row_at(0) is None
    assert again.row_at(1_000) is None


# Survivors


def test_survivors_are_read_back_whole(disk: FaultyDisk, files: StateFiles) -> None:
    kept = [survivor(3), survivor(900, location=5, state=State.COMMITTED, op_offset=77)]
    files.write(snapshot(survivors=kept))
    assert opened(disk.crash(nothing_survives), files).read_survivors() == kept


def test_unchanged_survivors_are_not_written_again(disk: FaultyDisk, files: StateFiles) -> None:
    files.write(snapshot(survivors=[survivor(3)]))
    before = disk.list(DIRECTORY)
    files.write(snapshot(survivors=None))
    assert disk.list(DIRECTORY) == before
    assert files.read_survivors() == [survivor(3)]


def test_no_survivors_need_no_file(disk: FaultyDisk, files: StateFiles) -> None:
    assert files.read_survivors() == []
    files.write(snapshot(survivors=[survivor(3)]))
    files.write(snapshot(survivors=[]))
    files.collect([])
    assert disk.list(DIRECTORY) == []
    assert opened(disk, files).read_survivors() == []


# Files that may be deleted


def test_files_that_no_checkpoint_names_are_deleted(disk: FaultyDisk, files: StateFiles) -> None:
    for _ in range(3):
        files.write(snapshot({0: rows_from(0, 3)}, [survivor(1)]))
    newest = [files.chunks[0].name, "survivors.3"]
    files.collect([*newest, "survivors.2"])
    assert disk.list(DIRECTORY) == sorted([*newest, "survivors.2"])


def test_chunks_whose_messages_are_all_deleted_are_forgotten_oldest_first(
    files: StateFiles,
) -> None:
    files.write(snapshot({base: rows_from(base, 8) for base in (0, 8, 16)}))
    files.remove_below(799, 99)
    assert [chunk.base for chunk in files.chunks] == [0, 8, 16]
    files.remove_below(800, 0)
    assert [chunk.base for chunk in files.chunks] == [0, 8, 16]
    files.remove_below(10**9, 8)
    assert [chunk.base for chunk in files.chunks] == [8, 16]
    files.remove_below(10**9, 99)
    assert [chunk.base for chunk in files.chunks] == [16]


def test_a_table_that_is_rebuilt_never_writes_to_a_file_that_is_there(
    disk: FaultyDisk, files: StateFiles
) -> None:
    for _ in range(3):
        files.write(snapshot({0: rows_from(0, 3)}, [survivor(1)]))
    before = disk.snapshot()
    again = StateFiles(disk, CHUNK_ROWS)
    again.skip_generations()
    again.write(snapshot({0: rows_from(0, 4), 8: rows_from(8, 1)}, [survivor(2)]))
    assert {name: disk.snapshot()[name] for name in before} == before
    assert again.rows(0, 3, 1)["log_offset"].tolist() == [300]
    assert again.read_survivors() == [survivor(2)]


def test_a_file_that_a_crash_left_under_the_next_name_is_overwritten(
    disk: FaultyDisk, files: StateFiles
) -> None:
    path = f"{DIRECTORY}/{ChunkFile(0, 0, 1, 0).name}"
    disk.open(path, create=True).write_at(0, bytes(50 * ROW_BYTES))
    files.write(snapshot({0: rows_from(0, 2)}))
    assert len(disk.snapshot()[path]) == 2 * ROW_BYTES


# Damage


def test_any_flipped_bit_is_refused_by_name(disk: FaultyDisk, files: StateFiles) -> None:
    files.write(snapshot({0: rows_from(0, 2)}, [survivor(1)]))
    path = f"{DIRECTORY}/{files.chunks[0].name}"
    for place in range(2 * ROW_BYTES):
        disk.flip_bit(path, place, place % 8)
        with pytest.raises(StoreCorrupt) as refused:
            files.rows(0, 0, 2)
        assert refused.value.code == "state_table_damaged"
        assert refused.value.fields == {"path": path, "at": place // ROW_BYTES * ROW_BYTES}
        disk.flip_bit(path, place, place % 8)
    files.rows(0, 0, 2)


def test_a_missing_or_short_file_is_refused_by_name(disk: FaultyDisk, files: StateFiles) -> None:
    files.write(snapshot({0: rows_from(0, 2)}, [survivor(1), survivor(2)]))
    path = f"{DIRECTORY}/{files.chunks[0].name}"
    disk.open(path).truncate(ROW_BYTES + 5)
    with pytest.raises(StoreCorrupt) as short:
        files.rows(0, 0, 2)
    assert short.value.fields == {"path": path, "at": ROW_BYTES + 5}
    disk.remove(f"{DIRECTORY}/survivors.1")
    with pytest.raises(StoreCorrupt) as missing:
        files.read_survivors()
    assert missing.value.fields == {"path": f"{DIRECTORY}/survivors.1", "at": 0}


def test_only_our_own_names_are_ours(disk: FaultyDisk, files: StateFiles) -> None:
    files.write(snapshot({0: rows_from(0, 2)}, [survivor(1)]))
    files.refuse_foreign()
    for name in ("notes", "survivors.old", "123.4", f"{0:020d}", f"{0:020d}.1.tmp"):
        disk.open(f"{DIRECTORY}/{name}", create=True)
        with pytest.raises(StoreUnusable) as refused:
            files.refuse_foreign()
        assert refused.value.fields == {"path": f"{DIRECTORY}/{name}"}
        disk.remove(f"{DIRECTORY}/{name}")


def test_a_file_that_is_written_in_pieces_is_whole(
    disk: FaultyDisk, files: StateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_files, "PIECE_BYTES", 3 * ROW_BYTES - 1)
    files.write(snapshot({0: rows_from(0, 8)}))
    again = opened(disk.crash(nothing_survives), files)
    assert again.rows(0, 0, 8)["log_offset"].tolist() == [100 * row for row in range(8)]
