"""Pop positions survive a restart, a crash and a rebuild; an acknowledgement is never lost."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from escrowmq.model.catalog import Group, Topic
from escrowmq.store.repair.inspect import inspect
from escrowmq.testing.crash_explorer import CrashExplorer
from escrowmq.testing.survivors import interesting_survivors
from escrowmq.transaction.commands import Append, Command, MarkCatalog, PutGroup, PutTopic
from escrowmq.transaction.memory.pops import PopPosition
from escrowmq.transaction.pop_commands import (
    Acknowledge,
    BuryMessages,
    PlacePops,
    PopAcks,
    PopPlace,
)
from tests.unit.store.helpers import Driver, faulty, message


def popping() -> Driver:
    driver = Driver()
    driver.do(MarkCatalog(mark="kept"))
    driver.do(PutGroup(group=Group(name="readers")))
    for name in ("orders", "%DLQ%readers"):
        driver.do(PutTopic(topic=Topic(name=name)))
    driver.do(Append(messages=tuple(message(f"m-{number}") for number in range(20))))
    driver.do(PlacePops(group="readers", places=(PopPlace(0, 0),)))
    return driver


def acks(*ranges: tuple[int, int]) -> Acknowledge:
    return Acknowledge(group="readers", acks=(PopAcks(0, 0, ranges),))


@pytest.mark.parametrize("how", ["closed", "crashed", "rebuilt"])
def test_acknowledged_messages_stay_acknowledged(how: str) -> None:
    driver = popping()
    driver.do(acks((0, 3), (5, 1)))
    driver.store.checkpoint()
    driver.do(acks((9, 2)))
    driver.do(
        BuryMessages(messages=(message("m-3", topic="%DLQ%readers"),), acknowledges=acks((3, 1)))
    )
    expected = PopPosition(4).acknowledged(0, [(5, 1), (9, 2)])
    assert driver.store.core.pops.get("readers", 0) == expected
    before = driver.picture()
    driver = driver.restarted(how)
    assert driver.store.core.pops.get("readers", 0) == expected
    assert driver.picture()["pops"] == before["pops"]
    assert [one.body for one in driver.messages("%DLQ%readers", 0)] == [b"m-3"]


def test_a_store_with_pop_positions_is_sound() -> None:
    driver = popping()
    driver.do(acks((4, 2)))
    driver.store.close()
    assert inspect(driver.disk).report.findings == []


def test_a_power_cut_anywhere_keeps_what_was_acknowledged_and_adds_nothing() -> None:
    driver = popping()
    disk = faulty(driver)
    driver.store.checkpoint()
    begun = len(disk.journal)
    asked: set[int] = set()
    rng = Random(20_261_118)
    for step in range(12):
        offsets = rng.sample(range(20), 3)
        asked |= set(offsets)
        asks = acks(*((offset, 1) for offset in offsets))
        command: Command = asks
        if step % 3 == 2:
            dead = message(f"m-{step}", topic="%DLQ%readers")
            command = BuryMessages(messages=(dead,), acknowledges=asks)
        driver.do(command)
        disk.mark((frozenset(asked), driver.store.core.queue_ends.get(1, 0)))
        if step == 6:
            driver.store.checkpoint()
    explorer = CrashExplorer(disk.journal, disk.start)
    for point in explorer:
        if point.position < begun:
            continue
        note: Any = point.notes[-1] if point.notes else (frozenset(), 0)
        done, dead_count = note
        for survivors in interesting_survivors(point.pending, singled_out_max=2):
            found = Driver(point.crash(survivors), clock=driver.clock)
            position = found.store.core.pops.get("readers", 0)
            assert position is not None
            has = {offset for offset in range(20) if position.has(offset)}
            assert done <= has <= asked
            buried = found.messages("%DLQ%readers", 0)
            assert len(buried) >= dead_count
            # A dead letter and the acknowledgement of its original are there together.
            if has == done:
                assert len(buried) == dead_count
