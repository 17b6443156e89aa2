"""Unused names expire: on disk, after a restart, and after a rebuild."""

from __future__ import annotations

import pytest

from escrowmq.model.catalog import Group, Topic
from escrowmq.model.limits_config import DAY_MS
from escrowmq.store.checkpoint import checkpoint as checkpoints
from escrowmq.store.repair.inspect import inspect
from escrowmq.transaction.commands import MarkCatalog, Prepare, PutGroup, PutTopic
from escrowmq.transaction.core import Where
from escrowmq.transaction.expiry_commands import (
    ExpireGroups,
    ExpireOrigins,
    ExpireQueries,
    NoteUses,
)
from escrowmq.transaction.memory.origins import EXPIRED
from escrowmq.transaction.records import NamedOrigin, OriginsExpired
from escrowmq.transaction.states import State
from tests.unit.store.helpers import Driver, message

EXPIRE_MS = 30 * DAY_MS


def expire(driver: Driver) -> int:
    """Try to expire all origins; return how many expired."""
    numbers = tuple(driver.store.core.names.origins.named)
    records = driver.do(ExpireOrigins(numbers=numbers)).records
    return sum(len(one.numbers) for one in records if isinstance(one, OriginsExpired))


def used(driver: Driver, count: int) -> None:
    """Commit one transaction of each of `count` producer groups."""
    for number in range(count):
        driver.commit(driver.hold(f"t-{number}", group=f"group-{number}").half_offset)


def test_the_100_001st_origin_is_accepted_after_others_expired() -> None:
    driver = Driver()
    core = driver.store.core
    for number in range(core.limits.origins_max):
        core.apply(
            NamedOrigin(number, f"group-{number}", "", 0), Where(0, 0, driver.clock.now_ms())
        )
    one_more = Prepare(group="one-more", transaction_id="t", messages=(message(),))
    assert driver.refused(one_more).code == "too_many_origins"
    driver.clock.advance(ms=EXPIRE_MS + 1)
    assert expire(driver) == 100_000
    driver.do(one_more)
    # No number is given twice.
    assert core.names.origins.of("one-more", "", 0) == 100_000


@pytest.mark.parametrize("how", ["closed", "crashed", "rebuilt"])
def test_expired_origins_stay_expired_after_a_restart(how: str) -> None:
    driver = Driver()
    used(driver, 12)
    driver.store.checkpoint()
    driver.clock.advance(ms=EXPIRE_MS + 1)
    driver.commit(driver.hold("again", group="group-3").half_offset)
    assert expire(driver) == 11
    driver.hold("back", group="group-5")
    before = driver.picture()
    driver = driver.restarted(how)
    assert driver.picture() == before
    origins = driver.store.core.names.origins
    assert [named.group for named in origins.named.values()] == ["group-3", "group-5"]
    assert origins.of("new", "", 0) == NamedOrigin(13, "new", "", 0)
    # Their half messages are still in the log, and so are their names.
    assert origins[driver.half(7).origin].group == "group-7"
    assert inspect(driver.disk).report.findings == []


def test_a_restart_does_not_count_as_a_use() -> None:
    driver = Driver()
    used(driver, 2)
    for _ in range(31):
        driver.clock.advance(ms=DAY_MS)
        driver = driver.closed_and_opened()
    assert expire(driver) == 2


@pytest.mark.parametrize("state", [State.PREPARED, State.PARKED])
def test_an_origin_stays_while_a_survivor_of_it_is_undecided(state: State) -> None:
    driver = Driver(chunk_rows=64)
    row = driver.hold("kept", group="kept").half_offset
    if state is State.PARKED:
        driver.store.table.mark(row, 1, State.PARKED)
    # Enough rows for the chunk to leave memory.
    used(driver, 100)
    driver.clock.advance(ms=DAY_MS)
    driver.append()
    driver.store.checkpoint()
    driver.store.checkpoint()
    assert row in driver.store.table.survivors.rows
    driver.clock.advance(ms=EXPIRE_MS + 1)
    assert expire(driver) == 100
    assert driver.store.core.names.origins[0].group == "kept"
    driver.roll_back(row)
    assert expire(driver) == 1


def test_names_of_expired_origins_go_with_the_log() -> None:
    driver = Driver(segment_bytes_max=4096)
    used(driver, 3)
    waits = driver.hold("waits", group="waits").half_offset
    driver.roll_segment()
    driver.clock.advance(ms=EXPIRE_MS + 1)
    assert expire(driver) == 3
    driver.roll_segment()
    driver.retain()
    origins = driver.store.core.names.origins
    assert origins.past == {}
    # The name of the carried one is kept with its new place, even after its decision.
    driver.commit(waits)
    assert expire(driver) == 1
    assert [past.named.group for past in origins.past.values()] == ["waits"]
    driver = driver.closed_and_opened()
    assert driver.store.core.names.origins[driver.half(waits).origin].group == "waits"
    assert driver.store.core.names.origins[1].group == EXPIRED
    assert inspect(driver.disk).report.findings == []


def test_a_checkpoint_without_uses_counts_from_its_own_time() -> None:
    driver = Driver()
    used(driver, 2)
    driver.decide_batch(7)
    driver.store.close()
    saved = checkpoints.load(driver.disk, checkpoints.PATH)
    assert saved is not None
    for app in saved.batches.values():
        app.decided_at_ms.clear()
    checkpoints.save(driver.disk, saved.with_files(origin_uses=None))
    driver = driver.opened_again()
    origins = driver.store.core.names.origins
    assert origins.end == 2
    driver.clock.advance(ms=EXPIRE_MS)
    assert expire(driver) == 0
    assert list(driver.store.core.batches.unused(["app"], driver.clock.now_ms() - EXPIRE_MS)) == []
    driver.clock.advance(ms=1)
    assert expire(driver) == 2


def test_an_expired_query_is_refused_after_a_restart_and_a_rebuild() -> None:
    driver = Driver()
    driver.decide_batch(7)
    driver.clock.advance(ms=EXPIRE_MS + 1)
    driver.do(ExpireQueries(queries=(("app", "q"),)))
    for _ in range(2):
        driver = driver.closed_and_opened()
        assert driver.store.core.batches.judge("app", "q", 7) == "expired"
        assert driver.store.core.batches.judge("app", "other", 7) == "taken"
        assert driver.store.core.batches.judge("app", "q", 8) == "new"
    driver.store.close()
    for path in (checkpoints.PATH, checkpoints.PREVIOUS):
        driver.disk.remove(path)
    driver = driver.opened_again()
    assert driver.store.core.batches.judge("app", "q", 7) == "expired"


def test_a_thousand_short_lives_leave_memory_and_checkpoint_as_they_were() -> None:
    driver = Driver(segment_bytes_max=65_536)
    sizes = []
    for day in range(300):
        for number in range(3):
            name = f"{day}-{number}"
            driver.commit(driver.hold(name, group=f"group-{name}").half_offset)
        driver.decide_batch(day, query_id=f"query-{day}")
        driver.append(message(bytes(30_000), topic="filler"))
        driver.clock.advance(ms=DAY_MS)
        expire(driver)
        since_ms = driver.clock.now_ms() - EXPIRE_MS
        unused = tuple(driver.store.core.batches.unused(["app"], since_ms))
        driver.do(ExpireQueries(queries=unused))
        driver.retain()
        driver.store.checkpoint()
        core = driver.store.core
        assert len(core.names.origins) <= 3 * 31
        assert len(core.batches.apps["app"].highest) <= 31
        # Names that expired on the last day are forgotten when the log's start next advances.
        assert len(core.names.origins.past) <= 6
        file = driver.disk.open(checkpoints.PATH)
        sizes.append(file.size())
        file.close()
    assert max(sizes[35:]) < 1.5 * sizes[30]


@pytest.mark.parametrize("how", ["closed", "crashed", "rebuilt"])
def test_uses_and_expired_groups_are_known_after_a_restart(how: str) -> None:
    driver = Driver()
    driver.do(MarkCatalog(mark="kept"))
    for name in ("dead", "alive"):
        driver.do(PutGroup(group=Group(name=name), is_only_made=True))
    driver.do(PutTopic(topic=Topic(name="orders"), is_only_made=True))
    driver.clock.advance(ms=DAY_MS)
    driver.do(NoteUses(groups=("alive",), topics=("orders",)))
    driver.clock.advance(ms=EXPIRE_MS + 1)
    driver.do(ExpireGroups(names=("dead", "alive")))
    before = driver.store.core.uses.saved()
    assert list(before.groups) == ["alive"]
    driver = driver.restarted(how)
    assert driver.store.core.uses.saved() == before
    for catalog in (driver.store.core.catalog, driver.store.catalog):
        assert catalog.has_lost_offsets("dead")
        assert not catalog.has_lost_offsets("alive")
        assert catalog.topics["orders"].is_made_by_use
