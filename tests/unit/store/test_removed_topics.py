"""A store whose topics are deleted and made again is the same after every restart."""

from __future__ import annotations

import pytest

from escrowmq.model.catalog import Group, Setting, Topic
from escrowmq.model.resolution import Resolution
from escrowmq.store.checkpoint import checkpoint as checkpoints
from escrowmq.store.repair.inspect import check
from escrowmq.store.repair.repair import end_lost, repair
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import everything_survives
from escrowmq.transaction.commands import (
    Append,
    End,
    MarkCatalog,
    Park,
    PutGroup,
    PutSetting,
    PutTopic,
    RemoveTopic,
)
from escrowmq.transaction.core import Where
from escrowmq.transaction.records import Lost
from escrowmq.transaction.states import State
from tests.unit.store.helpers import HOUR, Driver, message


def kept(driver: Driver | None = None, *topics: str) -> Driver:
    """A store whose log keeps topics, with these topics."""
    driver = driver or Driver()
    driver.do(MarkCatalog(mark="kept"))
    for name in topics or ("orders", "filler"):
        driver.do(PutTopic(topic=Topic(name=name)))
    return driver


def remove(driver: Driver, name: str = "orders") -> None:
    driver.do(RemoveTopic(name=name, by="test", is_forced=True))


def remake(driver: Driver, name: str = "orders") -> None:
    remove(driver, name)
    driver.do(PutTopic(topic=Topic(name=name)))


def busy() -> Driver:
    """Messages, half messages and delays of a deleted topic, and of the new topic of that name."""
    driver = kept()
    driver.append(message("old", keys="k"), message("old", queue_id=1))
    driver.commit(driver.hold("committed", message("old half")).half_offset)
    driver.hold("undecided", message("old half"), message("old half", queue_id=1))
    driver.append(message("old delay", deliver_at_ms=driver.clock.now_ms() + HOUR))
    driver.store.checkpoint()
    driver.hold("late", message("old half"))
    driver.do(PutGroup(group=Group(name="readers")))
    driver.do(PutSetting(setting=Setting(name="a", value=1)))
    remake(driver)
    driver.append(message("new"))
    driver.commit(driver.hold("newly", message("new half")).half_offset)
    return driver


NEW = ["new", "new half"]


def picture(driver: Driver) -> object:
    found = driver.picture()
    # Rows below the log's start are rebuilt only if they are needed.
    return {name: found[name] for name in ("queues", "names", "queue_ends", "catalog", "delays")}


def rebuilt(driver: Driver) -> Driver:
    """Rebuild all projections from the log, on top of the checkpoint."""
    driver.store.close()
    checkpoint = checkpoints.load(driver.disk, checkpoints.PATH)
    assert checkpoint is not None
    checkpoints.save(driver.disk, checkpoint.with_files(rebuild="a test"))
    again = driver.opened_again()
    assert again.found.rebuilt_because
    return again


def from_scratch(driver: Driver) -> Driver:
    """Open the store from its log alone."""
    driver.store.close()
    for path in (checkpoints.PATH, checkpoints.PREVIOUS):
        driver.disk.remove(path)
    return driver.opened_again()


def crashed(driver: Driver) -> Driver:
    return driver.crashed()


def killed(driver: Driver) -> Driver:
    return driver.crashed(everything_survives)


def stopped(driver: Driver) -> Driver:
    return driver.closed_and_opened()


@pytest.mark.parametrize("again", [stopped, crashed, killed, rebuilt, from_scratch])
def test_every_restart_gives_the_same(again: object) -> None:
    assert callable(again)
    driver = busy()
    before = picture(driver)
    for _ in range(2):
        driver = again(driver)
        assert picture(driver) == before
        assert driver.bodies() == NEW
        assert driver.bodies(queue_id=1) == []
        assert driver.store.catalog.saved() == driver.store.core.catalog.saved()
    assert driver.store.catalog.group("readers") == Group(name="readers")
    late = driver.reader.find_transaction("late")
    assert late is not None
    end = End(half_offset=late.half_offset, resolution=Resolution.COMMIT, by="producer")
    decision = driver.decide(end)
    assert decision.refused is not None
    assert decision.refused.code == "topic_deleted"
    assert driver.half(late.half_offset).state is State.PARKED
    driver.clock.advance(ms=HOUR)
    driver.release()
    assert driver.store.dropped == 1
    assert driver.bodies() == NEW
    report = check(driver.disk)
    assert not report.findings
    assert (report.counts.topics, report.counts.groups) == (2, 1)


def test_messages_of_a_deleted_topic_are_found_no_more() -> None:
    driver = kept()
    driver.append(message("old", keys="k"))
    at = driver.messages()[0].log_offset
    held = driver.hold("t", message("half", keys="k"))
    driver.commit(held.half_offset)
    assert len(driver.reader.find("orders", "k", limit=9)) == 2
    remake(driver)
    assert driver.reader.find("orders", "k", limit=9) == []
    assert driver.reader.at(at) is None
    assert driver.reader.at(held.log_offsets[0]) is None
    driver.append(message("new", keys="k"))
    assert len(driver.reader.find("orders", "k", limit=9)) == 1


def test_a_topic_and_its_end_are_visible_once_they_are_durable() -> None:
    driver = kept()
    driver.append(message("old"))
    store = driver.store
    store.execute(PutTopic(topic=Topic(name="new")), driver.clock.now_ms())
    store.execute(RemoveTopic(name="orders", by="test"), driver.clock.now_ms())
    assert store.core.catalog.topics.keys() == {"filler", "new"}
    assert store.catalog.topics.keys() == {"filler", "orders"}
    assert driver.bodies() == ["old"]
    store.sync()
    assert store.catalog.topics.keys() == {"filler", "new"}
    assert driver.reader.queue("orders", 0) is None


def test_messages_on_their_way_to_a_deleted_queue_are_dropped() -> None:
    driver = kept()
    now_ms = driver.clock.now_ms()
    driver.store.execute(Append(messages=(message("old"),)), now_ms)
    driver.store.execute(RemoveTopic(name="orders", by="test"), now_ms)
    driver.store.sync()
    assert driver.store.queues == {}
    assert driver.store.dispatcher.is_idle


def files(driver: Driver) -> list[str]:
    """Numbers of the queues that have files."""
    return [name.partition(".")[0].lstrip("0") or "0" for name in driver.disk.list("consumequeue")]


def test_files_go_with_the_next_checkpoint() -> None:
    driver = kept()
    driver.append(message("old"))
    driver.store.checkpoint()
    assert files(driver) == ["0"]
    assert driver.closed_and_opened().bodies() == ["old"]
    driver = driver.opened_again()
    assert driver.bodies() == ["old"]
    remake(driver)
    driver.append(message("new"))
    # The valid checkpoint still names them.
    assert len(driver.store.garbage) == 1
    assert files(driver) == ["0"]
    again = driver.opened_again()
    assert again.bodies() == ["new"]
    again.store.checkpoint()
    assert files(again) == ["1"]
    assert again.store.garbage == {}
    remove(again)
    again.store.checkpoint()
    assert files(again) == []


def test_a_queue_that_never_had_files_leaves_no_garbage() -> None:
    driver = kept()
    for _ in range(50):
        driver.append(message("old"))
        remake(driver)
    assert driver.store.garbage == {}
    assert driver.store.core.names.queues == {}
    assert driver.store.core.names.queues_end == 50


def test_files_that_a_crashed_checkpoint_left_go_too() -> None:
    """After a crash the store does not know whether there are any."""
    driver = kept()
    driver.append(message("old"))
    job = driver.store.begin_checkpoint()
    job.write()
    again = driver.opened_again()
    remove(again)
    assert len(again.store.garbage) == 1
    again.store.checkpoint()
    assert files(again) == []


def test_a_topic_deleted_while_a_checkpoint_is_written_leaves_nothing() -> None:
    driver = kept()
    driver.append(message("old"))
    job = driver.store.begin_checkpoint()
    remove(driver)
    job.write()
    driver.store.end_checkpoint(job)
    driver.store.checkpoint()
    assert files(driver) == []
    assert driver.closed_and_opened().bodies() == []


def test_undecided_rows_are_told_wherever_they_are_held() -> None:
    driver = kept()
    rows = [driver.hold(f"t{number}").half_offset for number in range(20)]
    for row in rows[1:-1]:
        driver.roll_back(row)
    driver.append(message(deliver_at_ms=driver.clock.now_ms() + HOUR))
    # The first chunk leaves a survivor.
    driver.store.checkpoint()
    driver.clock.advance(ms=HOUR // 2)
    driver.append(message(topic="filler"))
    driver.store.checkpoint()
    assert list(driver.store.table.survivors.rows) == [0]
    held = driver.store.table.held_in([0], 10)
    assert (dict(held.undecided), dict(held.waiting), held.rows) == ({0: 2}, {0: 1}, [0, 19])
    assert driver.store.table.held_in([], 10).rows == []
    assert driver.store.table.held_in([7], 10).undecided == {}
    delayed = driver.hold("delayed", message(deliver_after_ms=HOUR)).half_offset
    driver.commit(delayed)
    refused = driver.refused(RemoveTopic(name="orders", by="test"))
    assert (refused.code, refused.fields["undecided"]) == ("topic_undecided", 2)


def test_survivors_that_wait_are_told_too() -> None:
    driver = kept()
    driver.append(message(deliver_at_ms=driver.clock.now_ms() + 2 * HOUR))
    for number in range(20):
        driver.roll_back(driver.hold(f"t{number}").half_offset)
    driver.store.checkpoint()
    driver.clock.advance(ms=HOUR // 2)
    driver.append(message(topic="filler"))
    driver.store.checkpoint()
    assert list(driver.store.table.survivors.rows) == [0]
    assert driver.store.table.held_in([0], 10).waiting == {0: 1}


def test_retention_carries_nothing_for_a_deleted_topic() -> None:
    driver = kept()
    driver.append(message("old delay", deliver_at_ms=driver.clock.now_ms() + 900 * HOUR))
    undecided = driver.hold("undecided", message("old half")).half_offset
    remake(driver)
    driver.roll_segment()
    driver.clock.advance(ms=25 * HOUR)
    driver.append(message("new"))
    assert driver.retain().carried == 1
    assert driver.store.dropped == 1
    assert driver.half(undecided).state is State.PREPARED
    again = rebuilt(driver)
    assert again.bodies() == ["new"]
    assert not check(again.disk).findings


def test_retention_forgets_deleted_queues_that_hold_nothing_any_more() -> None:
    """Otherwise every topic that is deleted by force would leave a name in each checkpoint."""
    driver = kept(None, "orders", "carts", "filler")
    undecided = driver.hold("undecided", message("half")).half_offset
    parked = driver.hold("parked", message("half", topic="carts")).half_offset
    for name in ("orders", "carts"):
        remove(driver, name)
    driver.do(Park(half_offset=parked, reason="by hand"))
    named = driver.store.core.names
    assert [queue.topic for queue in named.deleted.values()] == ["orders", "carts"]
    driver.roll_back(undecided)
    for _ in range(2):
        driver.roll_segment()
        driver.clock.advance(ms=25 * HOUR)
        driver.append(message("new", topic="filler"))
        driver.retain()
    assert [queue.topic for queue in named.deleted.values()] == ["carts"]
    assert driver.half(parked).state is State.PARKED
    driver.roll_back(parked)
    driver.roll_segment()
    driver.clock.advance(ms=25 * HOUR)
    driver.append(message("new", topic="filler"))
    driver.retain()
    assert named.deleted == {}
    assert rebuilt(driver).store.core.names.deleted == {}


def test_a_log_without_its_beginning_is_checked_with_deleted_queues() -> None:
    """Its first offset in a deleted queue may be any number."""
    driver = kept()
    driver.append(message("old"), message("old"))
    driver.roll_segment()
    driver.append(message("old"))
    driver.hold("t", message("old half"))
    driver.clock.advance(ms=25 * HOUR)
    driver.append(message("kept"))
    driver.retain()
    assert driver.store.log.start > 0
    remake(driver)
    driver.append(message("new"))
    driver.store.checkpoint()
    assert check(driver.disk).findings == []
    again = rebuilt(driver)
    assert again.bodies() == ["new"]
    assert check(again.disk).findings == []


def test_lost_messages_of_a_deleted_queue_are_passed_over() -> None:
    driver = kept()
    driver.append(message("old"))
    remake(driver)
    where = Where(driver.store.log.end, driver.store.log.end, driver.store.last_at_ms)
    driver.store.apply([Lost(length=100, queue_ends=[(0, 5)])], where)
    driver.store.sync()
    assert driver.store.core.queue_ends == {}


def test_a_repair_of_a_store_with_a_deleted_topic_leaves_it_deleted() -> None:
    driver = kept()
    driver.append(message("old"))
    place = driver.store.log.end
    held = driver.hold("t", message("old half"))
    remake(driver)
    driver.append(message("new"))
    driver.store.close()
    disk = driver.disk
    assert isinstance(disk, FaultyDisk)
    disk.flip_bit("commitlog/00000000000000000000", place + 60, 1)
    repair(disk, FaultyDisk())
    again = driver.opened_again()
    assert again.bodies() == ["new"]
    (ended,) = end_lost(again.store, again.clock.now_ms())
    # Its name is kept as long as something of it is undecided.
    assert (ended.half_offset, ended.topic) == (held.half_offset, "orders")
