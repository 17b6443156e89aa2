"""Users survive restarts, crashes, rebuilds and retention; a removed user never comes back."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from escrowmq.access.parsing import parse_policy
from escrowmq.model.clock import ClockReading
from escrowmq.model.users import Role, User
from escrowmq.store.checkpoint import checkpoint as checkpoints
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.log.commit_log import segment_path
from escrowmq.store.recovery.format import VERSION, read
from escrowmq.store.recovery.recovery import start_store
from escrowmq.store.repair.catalog_on_disk import read_catalog
from escrowmq.store.repair.inspect import check, inspect
from escrowmq.testing.crash_explorer import CrashExplorer
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import interesting_survivors
from escrowmq.transaction.commands import Command, Prepare
from escrowmq.transaction.memory.catalog import SavedCatalog
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.user_commands import NEW, MarkAccess, RemoveUser
from tests.golden.make_v3 import EXPECTED, STORE, found_in
from tests.unit.store.helpers import HOST, HOUR, T0, Driver, faulty, message, small_config
from tests.unit.transaction.users import put, user

PAY = user("pay", policies=(parse_policy("Topic:pay-*", "Pub", "10.0.0.0/8"),), access_key="AK")
ADMIN = user("admin", roles=(Role.ADMIN,))


def with_users() -> Driver:
    driver = Driver()
    driver.do(MarkAccess())
    for one in (PAY, ADMIN, user("gone")):
        driver.do(put(one))
    driver.do(RemoveUser(name="gone", by="admin"))
    return driver


def users(driver: Driver) -> dict[str, User]:
    core, durable = driver.store.core.catalog, driver.store.catalog
    assert core.saved() == durable.saved()
    return {name: kept.user for name, kept in durable.users.items()}


@pytest.mark.parametrize("how", ["closed", "crashed", "rebuilt"])
def test_users_are_there_after_every_restart(how: str) -> None:
    driver = with_users()
    driver.store.checkpoint()
    disabled = user("admin", is_enabled=False)
    driver.do(put(disabled, driver.store.core.catalog.users["admin"].version))
    before = driver.picture()
    driver = driver.restarted(how)
    assert users(driver) == {"pay": PAY, "admin": disabled}
    assert driver.store.catalog.access_keys == {"AK": "pay", "admin": "admin"}
    assert driver.store.catalog.was_access_on
    assert driver.picture() == before
    assert inspect(driver.disk).report.findings == []


def test_users_outlive_the_log_that_they_stood_in() -> None:
    driver = with_users()
    stood_below = driver.store.log.end
    for _ in range(3):
        for number in range(40):
            driver.append(message(f"{number:0100d}"))
        driver.clock.advance(ms=48 * HOUR)
    driver.retain()
    assert driver.store.log.start >= stood_below
    for again in (driver.crashed(), driver.closed_and_opened()):
        assert users(again) == {"pay": PAY, "admin": ADMIN}
        assert again.store.catalog.was_access_on
    assert not check(driver.disk).is_damaged


def test_a_user_is_visible_to_the_broker_once_it_is_durable() -> None:
    driver = Driver()
    driver.store.execute(put(PAY), driver.clock.now_ms())
    assert "pay" in driver.store.core.catalog.users
    assert driver.store.catalog.users == {}
    driver.store.sync()
    assert users(driver) == {"pay": PAY}


def test_a_power_cut_anywhere_keeps_every_change_that_was_acknowledged() -> None:
    driver = Driver()
    disk = faulty(driver)
    begun = len(disk.journal)
    rng = Random(20_261_120)
    known = driver.store.core.catalog.users
    for step in range(14):
        name = rng.choice(("pay", "ship", "till"))
        command: Command = put(user(name))
        if name in known and step % 3:
            command = RemoveUser(name=name, by="admin")
        elif name in known:
            command = put(user(name, access_key=f"AK{step}"), known[name].version)
        before = {one: kept.user for one, kept in known.items()}
        driver.do(command)
        disk.mark((before, users(driver)))
        if step == 6:
            driver.store.checkpoint()
    for point in CrashExplorer(disk.journal, disk.start):
        if point.position < begun:
            continue
        note: Any = point.notes[-1] if point.notes else ({}, {})
        for survivors in interesting_survivors(point.pending, singled_out_max=2):
            found = users(Driver(point.crash(survivors), clock=driver.clock))
            # What was acknowledged last, or the change that was under way.
            assert found == note[1] or _is_one_step_on(note[1], found)


def _is_one_step_on(acknowledged: dict[str, User], found: dict[str, User]) -> bool:
    changed = {
        name
        for name in acknowledged.keys() | found.keys()
        if acknowledged.get(name) != found.get(name)
    }
    return len(changed) == 1


def on_disk(driver: Driver) -> SavedCatalog:
    return read_catalog(driver.disk).saved()


def test_users_are_read_from_the_files_of_a_store_that_is_not_opened() -> None:
    driver = with_users()
    assert on_disk(driver) == driver.store.catalog.saved()
    driver.roll_segment()
    driver.store.checkpoint()
    assert on_disk(driver) == driver.store.catalog.saved()
    driver.do(RemoveUser(name="pay", by="admin"))
    driver.roll_segment()
    driver.do(put(user("later")))
    assert on_disk(driver) == driver.store.catalog.saved()
    before = faulty(driver).snapshot()
    # The log alone, and a tail that a crash has torn.
    for path in (checkpoints.PATH, checkpoints.PREVIOUS):
        driver.disk.remove(path)
    assert on_disk(driver).users == driver.store.catalog.saved().users
    start = driver.store.log.segments[-1].start
    with closing(driver.disk.open(segment_path(start))) as file:
        file.truncate(file.size() - 1)
    assert [kept.user.name for kept in on_disk(driver).users] == ["admin"]
    assert {*faulty(driver).snapshot()} == {*before} - {checkpoints.PATH, checkpoints.PREVIOUS}


def test_half_messages_keep_their_users() -> None:
    driver = Driver()
    for name in ("pay", "ship", ""):
        command = Prepare(group="g", transaction_id=name, messages=(message(),), user=name)
        driver.do(command)
    for again in (driver.crashed(), driver.closed_and_opened()):
        origins = again.store.core.names.origins
        found = [origins[again.half(row).origin].user for row in range(3)]
        assert found == ["pay", "ship", ""]


def test_a_store_of_version_3_is_read_whole_and_gets_users(tmp_path: Path) -> None:
    root = Path(shutil.copytree(STORE, tmp_path / "v3"))
    expected = json.loads(EXPECTED.read_text())
    driver = Driver(OsDisk(root))
    assert driver.found.frames > 0, "it was killed, not stopped"
    assert driver.found.rebuilt_because == ""
    found = found_in(driver)
    # Later versions add fields to the catalog.
    assert expected["catalog"].items() <= found["catalog"].items()
    assert {**found, "catalog": expected["catalog"]} == expected
    assert driver.store.catalog.users == {}
    assert not driver.store.catalog.was_access_on
    driver.do(put(PAY, NEW))
    assert users(driver.closed_and_opened()) == {"pay": PAY}


@pytest.mark.parametrize("lost", ["statetable", "consumequeue", "keyindex"])
def test_projections_of_a_store_of_version_3_are_made_anew(tmp_path: Path, lost: str) -> None:
    root = Path(shutil.copytree(STORE, tmp_path / "v3"))
    shutil.rmtree(root / lost)
    driver = Driver(OsDisk(root))
    assert driver.found.rebuilt_because
    expected = json.loads(EXPECTED.read_text())
    found = found_in(driver)
    for part in ("queues", "transactions", "keys", "pops"):
        assert found[part] == expected[part]


def test_a_start_raises_the_version_of_a_store_of_version_3(tmp_path: Path) -> None:
    root = Path(shutil.copytree(STORE, tmp_path / "v3"))
    assert read(OsDisk(root)).version == 3
    store, _ = start_store(OsDisk(root), small_config(), CheckPolicy(), HOST, ClockReading(T0, 0))
    store.close()
    assert read(OsDisk(root)).version == VERSION == 4


def test_a_new_store_has_the_version_of_users() -> None:
    disk = FaultyDisk()
    Driver(disk).store.close()
    assert read(disk).version == 4
