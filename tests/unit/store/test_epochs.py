"""Every start of a broker begins an epoch; the lineage outlives crashes and deleted log."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from escrowmq.model.clock import ClockReading
from escrowmq.model.errors import StoreUnusable
from escrowmq.model.lineage import ROOT, Lineage
from escrowmq.model.resolution import Resolution
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.recovery.format import VERSION, read
from escrowmq.store.recovery.recovery import open_store, start_store
from escrowmq.store.store import Store
from escrowmq.testing import FaultyDisk
from escrowmq.testing.crash_explorer import CrashExplorer
from escrowmq.testing.survivors import everything_survives, nothing_survives
from escrowmq.transaction.commands import End, Prepare
from escrowmq.transaction.policy import CheckPolicy
from tests.golden.make_v1 import STORE
from tests.unit.store.helpers import HOST, MINUTE, T0, Driver, message, small_config


def start(disk: FaultyDisk | OsDisk, now_ms: int = T0) -> Store:
    return start_store(disk, small_config(), CheckPolicy(), HOST, ClockReading(now_ms, 0))[0]


def ids(lineage: Lineage) -> list[str]:
    return [epoch.id for epoch in lineage.epochs]


def hold(store: Store, transaction_id: str) -> None:
    command = Prepare(group="pay", transaction_id=transaction_id, messages=(message(),))
    assert store.execute(command, T0).refused is None
    store.sync()


def test_each_start_begins_an_epoch_and_each_recovery_knows_them() -> None:
    disk = FaultyDisk()
    first = start(disk)
    hold(first, "a")
    first.close()
    second = start(disk)
    known = second.core.lineage
    assert len(known.epochs) == 3
    assert known.epochs[0].id == ROOT
    assert known.epochs[:2] == first.core.lineage.epochs
    # The table's end, and a time after everything before.
    assert (known.epochs[2].half_offset, known.epochs[2].at_ms) == (1, T0 + 1)
    # With its checkpoint, and without one.
    for survivor in (disk, disk.crash(nothing_survives)):
        again, _ = open_store(survivor, small_config(), CheckPolicy(), HOST)
        assert again.core.lineage == known


def test_an_epoch_outlives_the_log_that_it_stood_in() -> None:
    disk = FaultyDisk()
    store = start(disk)
    known = store.core.lineage
    hold(store, "a")
    store.checkpoint()
    checkpoint = store.previous
    assert checkpoint is not None
    assert tuple(checkpoint.epochs) == known.epochs


def test_two_starts_of_one_copy_are_two_histories(tmp_path: Path) -> None:
    start(OsDisk(tmp_path / "a")).close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    mine, theirs = start(OsDisk(tmp_path / "a")), start(OsDisk(tmp_path / "b"))
    assert mine.core.lineage.store_id == theirs.core.lineage.store_id
    assert mine.core.lineage.epoch != theirs.core.lineage.epoch
    assert ids(mine.core.lineage)[:2] == ids(theirs.core.lineage)[:2]


def test_a_store_of_version_1_is_opened_and_then_refused_to_older_programs(tmp_path: Path) -> None:
    shutil.copytree(STORE, tmp_path / "store")
    disk = OsDisk(tmp_path / "store")
    assert read(disk).version == 1
    store = start(disk)
    assert len(store.core.lineage.epochs) == 2
    first = store.core.lineage.first_epoch
    assert first is not None
    assert first.half_offset == store.table.end
    store.close()
    stated = json.loads((tmp_path / "store" / "format").read_bytes())
    # Version 0.1.0 refuses every version but 1, with store_version_unknown.
    assert (stated["version"], read(disk).version) == (VERSION, VERSION)
    start(disk).close()


def test_a_crash_while_an_epoch_begins_leaves_a_store_that_starts() -> None:
    before = FaultyDisk()
    start(before).close()
    disk = FaultyDisk(before.crash_image(everything_survives))
    start(disk).close()
    seen = set()
    for point in CrashExplorer(disk.journal, disk.start):
        for survivors in (nothing_survives, everything_survives):
            seen.add(len(start(point.crash(survivors)).core.lineage.epochs))
    # Root and the first start, perhaps the second, and the start after the crash.
    assert seen == {3, 4}


def test_without_room_for_an_epoch_the_broker_does_not_start() -> None:
    disk = FaultyDisk()
    start(disk).close()
    disk.capacity_bytes = sum(map(len, disk.snapshot().values())) + 10
    with pytest.raises(StoreUnusable, match="data_directory_full"):
        start(disk)


def test_a_decision_is_refused_for_another_transaction_or_history() -> None:
    driver = Driver()
    held = driver.hold("mine")

    def commit(row: int = 0, **believed: Any) -> End:  # noqa: ANN401 - fields of End
        return End(half_offset=row, resolution=Resolution.COMMIT, by="me", **believed)

    assert driver.refused(commit(ids=("other",))).code == "transaction_id_wrong"
    wrong = commit(epoch="elsewhere", seen_to=held.log_offsets[0])
    assert driver.refused(wrong).code == "other_history"
    for number in range(8):
        driver.roll_back(driver.hold(f"t{number}").half_offset)
    driver.clock.advance(ms=2 * MINUTE)
    driver.hold("young")
    driver.store.checkpoint()
    # The row has outlived its chunk, and its id is still checked.
    assert list(driver.store.table.survivors.rows) == [0]
    assert driver.refused(commit(ids=("other",))).code == "transaction_id_wrong"
    epoch = driver.store.core.lineage.epoch
    right = commit(ids=("other", "mine"), epoch=epoch, seen_to=held.log_offsets[0])
    assert driver.decide(right).refused is None
    # A row that is only in files is decided; the refusal says how.
    assert driver.refused(commit(1, ids=("any",))).code == "already_rolled_back"
