"""``escrowmq store check``, ``repair`` and ``migrate`` on real data directories."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from escrowmq.cli.data.store_text import SHOWN_MAX, as_table
from escrowmq.cli.main import app_for, main
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.disk.lock import DirectoryLock
from escrowmq.store.recovery.format import VERSION
from escrowmq.store.recovery.recovery import open_store
from escrowmq.store.repair.report import StoreFault, StoreReport
from escrowmq.testing.disk_image import DiskImage
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import everything_survives
from escrowmq.transaction.policy import CheckPolicy
from tests.unit.store.damage import damaged, frame_of
from tests.unit.store.shop import Frame, Shop, frames_of


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop(seed=23).run(100, checkpoints=0.03)


def exit_code(*arguments: object) -> object:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return stopped.value.code


def data_of(disk: FaultyDisk, data: Path) -> Path:
    disk.to_directory(data / "store")
    return data


@pytest.fixture
def good(shop: Shop, tmp_path: Path) -> Path:
    return data_of(FaultyDisk(shop.image()), tmp_path / "data")


@pytest.fixture
def bad(shop: Shop, tmp_path: Path) -> Path:
    return data_of(damaged(shop, hit(shop)), tmp_path / "data")


def hit(shop: Shop) -> Frame:
    """Return a frame that made messages visible."""
    return next(frame for frame in frames_of(shop.store)[30:] if frame.places)


def test_a_clean_store_is_described(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("store", "check", good) == 0
    printed = capsys.readouterr().out
    assert "commitlog/00000000000000000000" in printed
    assert "checkpoint      whole" in printed
    assert re.search(
        r"^Transactions +\d+ undecided, \d+ parked, \d+ committed", printed, re.MULTILINE
    )
    assert printed.endswith("No damage found.\n")


def test_damage_is_told_with_exit_code_1(
    shop: Shop, bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = hit(shop)
    assert exit_code("store", "check", bad) == 1
    printed = capsys.readouterr().out
    assert f"bytes from log offset {frame.start} are damaged" in printed
    assert "Lost with it:" in printed


def test_the_report_is_also_json(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("store", "check", bad, "-o", "json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["is_damaged"] is True
    assert report["is_served"] is False
    assert report["ranges"][0]["kind"] == "damaged"


def test_a_check_changes_nothing_and_needs_no_lock(good: Path) -> None:
    before = DiskImage.from_directory(good)
    exit_code("store", "check", good)
    assert DiskImage.from_directory(good) == before


def test_a_check_says_when_somebody_serves_the_directory(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with DirectoryLock(good):
        assert exit_code("store", "check", good) == 0
        assert "serves this directory" in capsys.readouterr().out
        assert exit_code("store", "check", good, "-o", "json") == 0
        assert json.loads(capsys.readouterr().out)["is_served"] is True


def test_a_torn_tail_is_no_damage(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest = max((good / "store" / "commitlog").iterdir())
    newest.write_bytes(newest.read_bytes() + b"torn")
    (good / "store" / "commitlog" / "1.tmp").write_bytes(b"")
    assert exit_code("store", "check", good) == 0
    printed = capsys.readouterr().out
    assert "At the next start: the torn tail, 4 bytes from log offset" in printed
    assert "At the next start: commitlog/1.tmp: an unfinished file" in printed


@pytest.mark.parametrize("command", ["check", "repair"])
def test_without_a_store_there_is_nothing_to_look_at(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("store", command, tmp_path) == 5
    assert "store_missing: there is no store in this directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["check", "repair"])
def test_the_store_itself_in_place_of_its_data_directory_is_recognised(
    command: str, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("store", command, good / "store") == 5
    assert "give the directory above it" in capsys.readouterr().err


def test_a_directory_that_cannot_be_read_is_an_error(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (good / "store" / "format").unlink()
    (good / "store" / "format").mkdir()
    assert exit_code("store", "check", good) == 5
    assert "data_directory_unreadable" in capsys.readouterr().err


# Repair.


def test_a_repair_tells_what_it_did_and_where_the_copies_are(
    shop: Shop, bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("store", "repair", bad, "--yes") == 0
    printed = capsys.readouterr().out
    assert printed.endswith("No damage is left.\n")
    copied = re.search(r"^Copied (\S+) to (\S+)$", printed, re.MULTILINE)
    assert copied
    copy = Path(copied[2])
    assert copy.is_relative_to(bad / "damaged")
    frame = hit(shop)
    assert copy.stat().st_size == frame.end - frame.start
    assert exit_code("store", "check", bad) == 0
    assert "were taken out by repairs" in capsys.readouterr().out


def test_a_finding_is_a_row_for_programs(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("store", "check", bad, "-o", "csv") == 1
    head, *rows = capsys.readouterr().out.splitlines()
    assert head == "code,path,at,what"
    assert rows[0].startswith("damaged,commitlog/")


def test_a_dry_run_of_a_repair_tells_its_plan_alone(
    bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = DiskImage.from_directory(bad)
    assert exit_code("store", "repair", bad, "--dry-run") == 1
    assert capsys.readouterr().out
    after = DiskImage.from_directory(bad)
    assert {path: after.files[path] for path in before.files} == before.files


def test_a_repair_asks_first(bad: Path) -> None:
    before = DiskImage.from_directory(bad)
    result = CliRunner().invoke(app_for(["store"], {}), ["store", "repair", str(bad)], input="n\n")
    assert result.exit_code == 1
    assert "Do this?" in result.output
    after = DiskImage.from_directory(bad)
    assert {path: after.files[path] for path in before.files} == before.files
    result = CliRunner().invoke(app_for(["store"], {}), ["store", "repair", str(bad)], input="y\n")
    assert result.exit_code == 0
    assert "No damage is left." in result.output


def test_messages_that_can_no_longer_be_delivered_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop()
    head = shop.prepare()
    shop.store.sync()
    shop.store.checkpoint()
    data = data_of(damaged(shop, frame_of(shop, head)), tmp_path)
    assert exit_code("store", "repair", data, "--yes") == 0
    assert f"Ended half message {head} (prepared) for topic" in capsys.readouterr().out
    # A second repair finds no damage and says so.
    assert exit_code("store", "repair", data, "--yes") == 0
    printed = capsys.readouterr().out
    assert "No damage found." in printed
    assert "Ended" not in printed


def test_a_repair_writes_at_the_stores_own_time(tmp_path: Path) -> None:
    """If a repair used a wrong machine clock, all messages could look old at the next start."""
    shop = Shop()
    head = shop.prepare()
    shop.store.sync()
    shop.store.checkpoint()
    data = data_of(damaged(shop, frame_of(shop, head)), tmp_path)
    assert exit_code("store", "repair", data, "--yes") == 0
    store, _ = open_store(OsDisk(data / "store"), StoreConfig(), CheckPolicy(), bytes(8))
    assert store.last_at_ms == shop.store.last_at_ms


def test_a_clean_store_is_left_alone(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("store", "repair", good) == 0
    assert capsys.readouterr().out == "No damage found.\n"
    assert not (good / "damaged").exists()


def test_files_and_missing_segments_are_part_of_the_plan(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = FaultyDisk(shop.image())
    disk.remove(f"commitlog/{disk.list('commitlog')[1]}")
    disk.flip_bit("checkpoint.old", 60, 0)
    data = data_of(FaultyDisk(disk.crash_image(everything_survives)), tmp_path)
    assert exit_code("store", "repair", data, "--yes") == 0
    printed = capsys.readouterr().out
    assert "fill the missing part of the log from offset" in printed
    assert "move checkpoint.old aside" in printed


def test_a_served_store_is_not_repaired(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with DirectoryLock(bad):
        assert exit_code("store", "repair", bad, "--yes") == 5
    assert "data_directory_locked" in capsys.readouterr().err


def test_damage_that_needs_an_operator_is_refused(
    bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bad / "store" / "notes.txt").write_text("mine")
    assert exit_code("store", "repair", bad, "--yes") == 5
    assert "store_foreign: move this file away" in capsys.readouterr().err
    assert not (bad / "damaged").exists()


def test_damage_that_is_left_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A frame with wrong contents is reported; a repair cannot fix it."""
    from tests.unit.store.test_inspect_log import replayed_from

    shop = Shop()
    shop.append()
    shop.store.checkpoint()
    disk, _ = replayed_from(shop, lambda record: msgspec.structs.replace(record, queue_offsets=[1]))
    disk.flip_bit("checkpoint.old", 60, 0)
    assert exit_code("store", "repair", data_of(disk, tmp_path), "--yes") == 1
    printed = capsys.readouterr().out
    assert "Copied checkpoint.old to" in printed
    assert printed.rstrip().endswith("than it states (message_mismatch)")


def test_copies_of_two_repairs_in_one_second_are_kept_apart(tmp_path: Path) -> None:
    from escrowmq.cli.data.store_repair import new_directory

    first = new_directory(tmp_path)
    first.mkdir()
    second = new_directory(tmp_path)
    assert second != first
    assert not second.exists()


def test_long_lists_are_cut() -> None:
    report = StoreReport(version=1)
    report.findings = [
        StoreFault(code="store_foreign", path=f"file-{at}", what="not ours")
        for at in range(SHOWN_MAX + 3)
    ]
    report.findings_left_out = 2
    printed = as_table(report)
    assert f"file-{SHOWN_MAX - 1} " in printed
    assert f"file-{SHOWN_MAX} " not in printed
    assert "and 5 more" in printed


@contextmanager
def no_byte_can_be_written() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_directory_that_cannot_be_written_can_be_checked_but_not_repaired(
    bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = DiskImage.from_directory(bad / "store")
    with no_byte_can_be_written():
        assert exit_code("store", "check", bad) == 1
        assert exit_code("store", "repair", bad, "--yes") == 5
    assert "data_directory_read_only" in capsys.readouterr().err
    assert DiskImage.from_directory(bad / "store") == before


def test_a_store_of_another_version_cannot_be_looked_at(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = good / "store" / "format"
    path.write_text(path.read_text().replace(f'"version":{VERSION}', '"version":9'))
    for command in ("check", "repair"):
        assert exit_code("store", command, good) == 5
        assert "store_version_unknown" in capsys.readouterr().err


def test_migrate_moves_the_state_and_names_the_setting(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set((good / "store").iterdir())
    assert not exit_code("store", "migrate", good, "--to", "mapped")
    assert "transaction.state_store = mapped" in capsys.readouterr().out
    assert (good / "store" / "mapped" / "position").is_file()
    assert not exit_code("store", "migrate", good, "--to", "sql", "-o", "json")
    told = json.loads(capsys.readouterr().out)
    assert told["state_store"] == "sql"
    assert told["undecided"] > 0
    assert (good / "store" / "state.db").is_file()
    assert not list((good / "store" / "mapped").iterdir())
    assert not exit_code("store", "migrate", good, "--to", "table")
    assert not (good / "store" / "state.db").exists()
    assert not exit_code("store", "check", good)
    assert before <= set((good / "store").iterdir())


def test_migrate_refuses_an_unknown_state_store(good: Path) -> None:
    assert exit_code("store", "migrate", good, "--to", "cards") == 2
