"""Every version opens the stores of all earlier versions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.log.commit_log import CommitLog, read_frames
from escrowmq.store.log.tail import open_segments
from escrowmq.store.recovery.format import read_or_make
from escrowmq.transaction.records import Answered, Began, Record
from tests.golden.make_v1 import EXPECTED, STORE
from tests.golden.summary import summary
from tests.unit.store.helpers import Driver, message

RECORDS = Record.__args__
BEGAN_TAG = Began.__struct_config__.tag


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy, because the original must not change."""
    return Path(shutil.copytree(STORE, tmp_path / "v1"))


@pytest.fixture
def expected() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(EXPECTED.read_text())
    return found


def opened(root: Path) -> Driver:
    return Driver(OsDisk(root))


def as_json(driver: Driver) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(summary(driver)))
    return found


def test_a_store_of_version_1_is_read_whole(copy: Path, expected: dict[str, Any]) -> None:
    driver = opened(copy)
    assert driver.found.frames > 0, "it was killed, not stopped"
    assert driver.found.rebuilt_because == ""
    assert as_json(driver) == expected
    assert as_json(driver.closed_and_opened()) == expected


def test_its_projections_can_be_made_anew(copy: Path, expected: dict[str, Any]) -> None:
    for name in ("statetable", "consumequeue", "keyindex"):
        shutil.rmtree(copy / name)
    driver = opened(copy)
    assert driver.found.rebuilt_because
    found = as_json(driver)
    known = found.pop("rows")
    # Rows whose log is deleted may be unknown if they are not needed.
    rows = expected.pop("rows")
    assert {row: facts for row, facts in rows.items() if row in known} == known
    assert all(facts["decided_by"] == ["", 0] for row, facts in rows.items() if row not in known)
    assert found == expected


def test_its_answers_to_checks_have_no_remark(copy: Path) -> None:
    """Records of version 1 lack the field."""
    disk = OsDisk(copy)
    log = CommitLog(disk, 2**30)
    open_segments(disk, log, 0)
    seed = read_or_make(disk, 8).seed
    answers = [
        record
        for segment in log.segments
        for frame in read_frames(segment, seed, from_offset=segment.start, end=segment.end)
        for record in frame.records
        if isinstance(record, Answered)
    ]
    assert answers
    assert {answer.remark for answer in answers} == {""}


def test_it_goes_on(copy: Path) -> None:
    driver = opened(copy)
    half = driver.reader.find_transaction("undecided")
    assert half is not None
    driver.commit(half.half_offset)
    driver.append(message("written by this version"))
    assert driver.bodies()[-2:] == ["more of it", "written by this version"]
    before = driver.picture()
    assert driver.closed_and_opened().picture() == before


def test_it_holds_every_kind_of_record_in_several_segments(copy: Path) -> None:
    disk = OsDisk(copy)
    log = CommitLog(disk, 2**30)
    open_segments(disk, log, 0)
    seed = read_or_make(disk, 8).seed
    kinds = {
        type(record)
        for segment in log.segments
        for frame in read_frames(segment, seed, from_offset=segment.start, end=segment.end)
        for record in frame.records
    }
    assert len(log.segments) > 2
    # Version 2 added the record of a start; later versions added the records after it.
    assert kinds == {kind for kind in RECORDS if kind.__struct_config__.tag < BEGAN_TAG}
    for name in ("checkpoint", "checkpoint.old", "statetable", "consumequeue", "keyindex"):
        assert (copy / name).exists()
