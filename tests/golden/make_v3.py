"""Makes ``tests/golden/v3`` and what must be found in it: a store of format version 3.

It was run once, as ``python -m tests.golden.make_v3``, by the last build that wrote this format.
The directory never changes, and every later version must open it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from escrowmq.model.catalog import Group, Setting, Topic
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.recovery import format as formats
from escrowmq.transaction.commands import (
    Append,
    Begin,
    MarkCatalog,
    MoveTime,
    PutGroup,
    PutSetting,
    PutTopic,
    RemoveGroup,
    RemoveTopic,
)
from escrowmq.transaction.expiry_commands import NoteUses
from escrowmq.transaction.pause_command import PauseGroup
from escrowmq.transaction.pop_commands import Acknowledge, PlacePops, PopAcks, PopPlace
from escrowmq.transaction.recall_commands import Recall
from escrowmq.transaction.records import PERSON
from tests.golden.make_v1 import day_of_everything, last_day
from tests.golden.summary import summary
from tests.unit.store.helpers import HOUR, MINUTE, Driver, message

HERE = Path(__file__).parent
STORE = HERE / "v3"
EXPECTED = HERE / "v3.json"
#: The topic with the longest name that ``day_of_everything`` sends to.
LONG = "%RETRY%" + "g" * 130


def make(root: Path) -> None:
    """Live two days in a store below ``root``, and leave it as a kill would."""
    root.mkdir(parents=True)
    # Before the store is opened, so that its seed is always the same.
    (root / formats.PATH).write_bytes(msgspec.json.encode(formats.chosen(305_419_897, 8)))
    driver = Driver(OsDisk(root))
    driver.do(Begin(epoch="00000000000000e1", boot_ms=5_000, boot_id="boot"))
    names(driver)
    day_of_everything(driver)
    driver.do(MoveTime(from_ms=driver.clock.now_ms(), to_ms=later(driver), why=PERSON, by="ann"))
    driver.clock.advance(ms=HOUR)
    after_the_last_checkpoint(driver)


def later(driver: Driver) -> int:
    """An hour from now."""
    return driver.clock.now_ms() + HOUR


def names(driver: Driver) -> None:
    """Every record of the catalog that this format has."""
    driver.do(MarkCatalog(mark="kept"))
    for name in ("orders", "filler", LONG, "removed"):
        driver.do(PutTopic(topic=Topic(name=name, created_at_ms=1)))
    driver.append(message("never seen again", topic="removed"))
    for name in ("readers", "paused", "gone"):
        driver.do(PutGroup(group=Group(name=name), is_only_made=name == "readers"))
    driver.do(PauseGroup(name="paused", is_paused=True, by="ann", reason="a bad release"))
    driver.do(PutSetting(setting=Setting(name="kv/a/b", value={"one": [1, None]})))
    driver.do(RemoveTopic(name="removed", by="ann"))
    driver.do(RemoveGroup(name="gone", by="broker", reason="expired"))
    driver.do(NoteUses(groups=("readers",), topics=("orders",)))


def after_the_last_checkpoint(driver: Driver) -> None:
    """Open transactions, a recalled message, pop positions, and a changed topic."""
    last_day(driver)
    driver.do(PutTopic(topic=Topic(name="orders", perm=4, created_at_ms=1)))
    waiting = message("recalled", deliver_at_ms=driver.clock.now_ms() + 9 * MINUTE)
    row = driver.store.table.end
    driver.do(Append(messages=(waiting,)))
    log_offset = driver.half(row).log_offset
    epoch = driver.store.core.lineage.epochs[-1].id
    driver.do(Recall(half_offset=row, log_offset=log_offset, epoch=epoch, by="client"))
    queue = driver.store.core.names.queues_of["orders"][0]
    driver.do(PlacePops(group="readers", places=(PopPlace(queue, 1),)))
    driver.do(Acknowledge(group="readers", acks=(PopAcks(queue, 0, ((1, 1), (3, 1))),)))


def found_in(driver: Driver) -> dict[str, Any]:
    """Everything that a caller could ask of this store, as plain JSON."""
    core = driver.store.core
    catalog = msgspec.to_builtins(core.catalog.saved())
    # Filters of a fixed size: what they answer is asked instead.
    removed, expired = catalog.pop("removed_names"), catalog.pop("expired_group_names")
    assert removed
    assert expired
    told = {
        **summary(driver),
        "catalog": catalog,
        "is_removed": {name: core.catalog.removed.may_have(name) for name in ("removed", "orders")},
        "has_lost_offsets": {
            name: core.catalog.has_lost_offsets(name) for name in ("gone", "readers")
        },
        "uses": msgspec.to_builtins(core.uses.saved()),
        "pops": msgspec.to_builtins(core.pops.groups, str_keys=True),
        "epochs": msgspec.to_builtins(core.lineage.epochs),
        "time_moved": msgspec.to_builtins(core.time_moved),
    }
    found: dict[str, Any] = json.loads(json.dumps(told))
    return found


def main() -> None:
    """Make both again."""
    shutil.rmtree(STORE, ignore_errors=True)
    make(STORE)
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(STORE, copy, dirs_exist_ok=True)
        found = found_in(Driver(OsDisk(Path(copy))))
    EXPECTED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
