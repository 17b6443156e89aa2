"""A data directory must be new, empty or a broker's. Other directories are left untouched."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.cli.data.data_directory import refuse_foreign_directory
from escrowmq.cli.main import main
from escrowmq.model.errors import StoreUnusable
from escrowmq.testing import InProcessBroker


@pytest.mark.parametrize("command", ["serve", "up", "pipeline"])
def test_a_directory_with_other_files_is_refused_and_stays_as_it_was(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("my only copy")
    with pytest.raises(SystemExit) as left:
        main([command, "--data-dir", str(tmp_path)])
    told = capsys.readouterr().err
    assert left.value.code == 5
    assert "data_directory_foreign" in told
    assert f"--data-dir {tmp_path / 'escrowmq-data'}" in told
    assert "holds='thesis.txt'" in told
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("name", ["lost+found", ".keep", "lake", "lock", "meta.db-wal"])
def test_leftovers_of_disks_and_of_interrupted_starts_are_accepted(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).mkdir()
    refuse_foreign_directory(tmp_path)
    refuse_foreign_directory(tmp_path / "new")


def test_a_data_directory_may_hold_other_files_too(tmp_path: Path) -> None:
    with InProcessBroker(data=tmp_path):
        pass
    (tmp_path / "notes.txt").touch()
    refuse_foreign_directory(tmp_path)


def test_every_name_that_a_broker_makes_is_known(tmp_path: Path) -> None:
    with InProcessBroker(data=tmp_path):
        pass
    (tmp_path / "store" / "format").unlink()
    refuse_foreign_directory(tmp_path)


def test_the_error_names_a_few_of_the_files(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"file-{number}").touch()
    with pytest.raises(StoreUnusable) as refused:
        refuse_foreign_directory(tmp_path)
    assert str(refused.value.fields["holds"]).count(",") == 2
