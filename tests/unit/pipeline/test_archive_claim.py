"""Which archive may append to a table, and each way in which checkpoint and table can diverge."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.pipeline.archive import claim as archive_claim
from escrowmq.pipeline.archive.claim import TableClaim, TableOwner, place_of
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.files import TableFiles, WrittenFile
from escrowmq.pipeline.lake.tables import MESSAGES
from tests.unit.logged import events
from tests.unit.pipeline.lake_rows import message, rows_of


class Archive:
    """A lake and one checkpoint, with batches of one row each."""

    def __init__(self, folder: Path, name: str = "checkpoint") -> None:
        self.lake = Lake(folder / "lake")
        self.checkpoint = folder / name
        self.taken_over: list[TableOwner] = []

    def claim(self) -> TableClaim:
        return archive_claim.claim(self.lake, MESSAGES, str(self.checkpoint), {}, self._take_over)

    def _take_over(self, place: TableOwner) -> str:
        self.taken_over.append(place)
        return f"after {place.batch}"

    def plan(self, batch: int, text: str = "") -> None:
        """Write the batch's offsets file, as Spark does before a batch begins."""
        file = self.checkpoint / "offsets" / str(batch)
        file.parent.mkdir(exist_ok=True)
        file.write_text(text or f"v1\nbatch {batch}")

    def run(self, batch: int) -> bool:
        """Run a batch as after a start, and return whether this run committed it."""
        claim = self.claim()
        if not (self.checkpoint / "offsets" / str(batch)).exists():
            self.plan(batch)
        return self.lake.commit(MESSAGES, self.file(batch), claim.entitled(batch))

    def file(self, offset: int) -> list[WrittenFile]:
        files = TableFiles(MESSAGES, self.lake.uri_of(MESSAGES), {})
        files.add(rows_of(MESSAGES, message("T", offset)))
        return files.finish()

    def offsets(self) -> list[int]:
        table = self.lake.open(MESSAGES).to_pyarrow_table()
        found: list[int] = table.column("queue_offset").to_pylist()
        return sorted(found)


def refused(run: Archive, batch: int) -> str:
    with pytest.raises(RequestRefused) as caught:
        run.run(batch)
    return caught.value.code


def test_the_first_checkpoint_of_a_lake_begins_with_everything(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    claim = archive.claim()
    assert claim.starting == "earliest"
    assert archive.taken_over == []
    assert place_of(archive.lake.open(MESSAGES)) == TableOwner(claim.archive_id, -1, 0)


def test_batches_are_committed_in_their_order_each_once(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    assert [archive.run(batch) for batch in (0, 1, 1, 2, 2)] == [True, True, False, True, False]
    assert archive.offsets() == [0, 1, 2]


def test_a_restart_is_the_same_owner(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    first = archive.claim()
    version = archive.lake.open(MESSAGES).version()
    again = archive.claim()
    assert (first.archive_id, first.starting) == (again.archive_id, again.starting)
    assert archive.lake.open(MESSAGES).version() == version


def test_a_deleted_checkpoint_goes_on_from_what_the_table_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = Archive(tmp_path)
    archive.run(0)
    archive.run(1)
    place = place_of(archive.lake.open(MESSAGES))
    shutil.rmtree(archive.checkpoint)

    assert archive.claim().starting == "after 1"
    assert archive.taken_over == [place]
    assert events(caplog) == ["archive_taken_over"]
    # Batch numbers start at 0 again, and the table does not mistake them for the old batches.
    assert archive.run(0)


def test_the_previous_owner_is_refused(tmp_path: Path) -> None:
    old, new = Archive(tmp_path, "old"), Archive(tmp_path, "new")
    old.run(0)
    new.run(0)
    assert refused(old, 1) == "archive_superseded"
    assert new.run(1)


def test_an_owner_that_slept_through_its_end_is_refused_at_its_commit(tmp_path: Path) -> None:
    old, new = Archive(tmp_path, "old"), Archive(tmp_path, "new")
    sleeper = old.claim()
    old.plan(0)
    entitled = sleeper.entitled(0)
    new.claim()
    with pytest.raises(RequestRefused) as caught:
        old.lake.commit(MESSAGES, old.file(0), entitled)
    assert caught.value.code == "archive_superseded"
    assert old.offsets() == []


def killed_before_it_is_owner(archive: Archive) -> None:
    with pytest.MonkeyPatch.context() as dying:
        dying.setattr(Lake, "commit", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            archive.claim()


def test_killed_between_the_note_and_the_claim_it_goes_on(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.run(0)
    shutil.rmtree(archive.checkpoint)
    killed_before_it_is_owner(archive)
    # The note stores the position found in the table, so it is not read again.
    assert archive.claim().starting == "after 0"
    assert len(archive.taken_over) == 1
    assert archive.run(0)


def test_of_two_new_checkpoints_one_wins(tmp_path: Path) -> None:
    first, second = Archive(tmp_path, "first"), Archive(tmp_path, "second")
    killed_before_it_is_owner(first)
    killed_before_it_is_owner(second)
    assert first.run(0)
    assert refused(second, 0) == "archive_superseded"
    assert first.run(1)


def test_a_checkpoint_from_a_backup_is_refused(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.run(0)
    shutil.copytree(archive.checkpoint, tmp_path / "backup")
    archive.run(1)
    archive.run(2)
    shutil.rmtree(archive.checkpoint)
    shutil.copytree(tmp_path / "backup", archive.checkpoint)
    # Spark planned the batch again: the same number, but other rows.
    archive.plan(1, "up to now")
    assert refused(archive, 1) == "checkpoint_behind_lake"
    archive.plan(2, "up to now")
    assert refused(archive, 2) == "checkpoint_behind_lake"
    assert archive.offsets() == [0, 1, 2]


def test_a_table_from_a_backup_is_seen(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.run(0)
    shutil.copytree(tmp_path / "lake", tmp_path / "backup")
    archive.run(1)
    shutil.rmtree(tmp_path / "lake")
    shutil.copytree(tmp_path / "backup", tmp_path / "lake")
    assert refused(archive, 2) == "lake_behind_checkpoint"


def test_a_lake_that_was_deleted_is_seen(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.run(0)
    archive.run(1)
    shutil.rmtree(tmp_path / "lake")
    # The archive claims the new table, but its earlier batches are missing there.
    assert refused(archive, 2) == "lake_behind_checkpoint"


def test_a_checkpoint_of_somebody_else_is_refused(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.checkpoint.mkdir()
    (archive.checkpoint / "metadata").write_text('{"id":"x"}')
    with pytest.raises(EscrowError) as caught:
        archive.claim()
    assert caught.value.code == "checkpoint_not_ours"


def test_compaction_and_deletion_leave_the_owner_alone(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.run(0)
    archive.run(1)
    place = place_of(archive.lake.open(MESSAGES))
    delta = archive.lake.open(MESSAGES)
    delta.optimize.compact()
    delta.delete("date < '2026-11-02'")
    delta.create_checkpoint()
    assert place_of(archive.lake.open(MESSAGES)) == place
    assert archive.run(2)
