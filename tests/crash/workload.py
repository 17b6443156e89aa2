"""A short and dense day of a broker: everything that the store can be asked to do."""

from __future__ import annotations

from escrowmq.model.resolution import Resolution
from escrowmq.transaction import commands as c
from escrowmq.transaction.states import State
from tests.crash.driver import Driver

QUEUES = (("orders", 0), ("orders", 1), ("stock", 0))


def scripted(driver: Driver) -> None:
    """Run every kind of command, and everything that the commands cause in the files."""
    ordinary_and_transactions(driver)
    requests_in_parts(driver)
    checks_and_parking(driver)
    verdicts_by_the_column(driver)
    spark_batches(driver)
    delays(driver)
    recalls(driver)
    very_late(driver)
    driver.kill()
    old_and_needed(driver)
    settle_the_old(driver)
    driver.close()
    many_in_one_flush(driver)
    driver.judge()


def ordinary_and_transactions(driver: Driver) -> None:
    message = driver.message
    driver.append(*(message(queue) for queue in QUEUES))
    driver.sync()
    first = driver.prepare(message())
    driver.sync()
    driver.commit(first)
    driver.sync()
    # Nine rows, which is more than a chunk holds, in more than one queue.
    many = driver.prepare(*(message(QUEUES[number % 3], size=120) for number in range(9)))
    dropped = driver.prepare(message(size=900), message(("stock", 0)))
    driver.sync()
    driver.commit(many)
    driver.roll_back(dropped)
    driver.sync()
    driver.commit(many)
    driver.do(c.End(half_offset=many, resolution=Resolution.ROLLBACK, by="late"))
    driver.sync()
    driver.checkpoint()


def requests_in_parts(driver: Driver) -> None:
    message = driver.message
    parts = [(message(), message(("stock", 0))) for _ in range(3)]
    for number, part in enumerate(parts):
        driver.prepare(*part, transaction_id="parts", number=number)
        driver.sync()
    again = driver.prepare(*parts[1], transaction_id="parts", number=1)
    driver.sync()
    # The commit names a row of the second request, and still decides the whole transaction.
    driver.commit(again)
    driver.sync()
    driver.prepare(message(), transaction_id="open-parts", number=0)
    driver.prepare(message(("stock", 0)), transaction_id="open-parts", number=1)
    driver.sync()


def checks_and_parking(driver: Driver) -> None:
    row = driver.prepare(driver.message())
    driver.sync()
    for _ in range(3):
        driver.clock.advance(seconds=1)
        driver.check(row)
        driver.sync()
    driver.do(c.CheckSent(half_offset=row, client="client-1"))
    driver.do(c.Park(half_offset=row, reason="exhausted"))
    driver.sync()
    driver.do(c.Resume(half_offset=row, by="operator"))
    driver.check(row)
    driver.sync()
    head = driver.world.transactions[row]
    verdict = c.Verdict(
        half_offset=row,
        kind=c.VerdictKind.PARK,
        state=State.PREPARED,
        checks_sent=head.checks_sent,
    )
    driver.do(verdict)
    driver.sync()
    parked = driver.prepare(driver.message())
    driver.do(c.Park(half_offset=parked, reason="by hand"))
    driver.sync()
    driver.commit(parked, by="operator")
    driver.sync()


def verdicts_by_the_column(driver: Driver) -> None:
    """Send verdicts across a chunk border, with rows that are decided one by one or not at all."""
    message = driver.message
    rows = [driver.prepare(message(QUEUES[n % 3], size=40)) for n in range(11)]
    many = driver.prepare(message(), message())
    late = driver.prepare(message(after_ms=1_000))
    driver.do(c.Park(half_offset=rows[2], reason="by hand"))
    driver.check(rows[3])
    driver.sync()
    driver.obey(*((row, row % 3 > 0) for row in (*rows[:8], many, late)))
    driver.obey(*((row, True) for row in rows[8:]), is_outdated=True)
    driver.sync()
    driver.obey(*((row, False) for row in rows), (many, True))
    driver.sync()
    driver.commit(many)
    driver.roll_back(late)
    driver.sync()


def spark_batches(driver: Driver) -> None:
    message = driver.message
    for attempt in ("task-0", "task-1"):
        for number in range(2):
            held = [message(QUEUES[n % 3], size=30) for n in range(5)]
            driver.prepare(*held, transaction_id=attempt, number=number, bulk=True)
        driver.sync()
    driver.decide_batch("task-0", "task-1", batch_id=7)
    driver.sync()
    driver.prepare(message(), transaction_id="task-0b", number=0, bulk=True)
    driver.decide_batch("task-0b", batch_id=7)
    driver.sync()
    driver.prepare(message(), transaction_id="plain", number=0, bulk=True)
    driver.decide_batch("plain", batch_id="a-name", query_id="plain-write")
    driver.sync()


def delays(driver: Driver) -> None:
    message = driver.message
    driver.append(message(in_ms=2_000), message(("stock", 0), in_ms=1_000))
    mixed = driver.prepare(message(after_ms=3_000), message(), message(after_ms=1_000))
    driver.sync()
    driver.commit(mixed)
    driver.sync()
    driver.clock.advance(seconds=2)
    driver.release()
    driver.sync()
    driver.append(message(in_ms=90_000), message(in_ms=5_000), message(in_ms=300_000))
    driver.prepare(message(after_ms=40_000), message())
    driver.sync()
    driver.clock.advance(seconds=4)
    driver.release()
    driver.sync()
    driver.checkpoint()


def recalls(driver: Driver) -> None:
    """Recall delayed messages: before a checkpoint and after it, again, and too late."""
    message = driver.message
    driver.append(*(message(QUEUES[n % 3], in_ms=1_000 * (n + 1)) for n in range(5)))
    last = max(driver.world.rows)
    driver.recall(last - 1)
    driver.sync()
    driver.checkpoint()
    driver.recall(last - 1)
    driver.recall(last)
    driver.recall(last - 4)
    driver.sync()
    driver.clock.advance(seconds=3)
    # The release and the recall of a message that is due share a flush.
    driver.recall(last - 3)
    driver.release()
    driver.recall(last - 2)
    driver.sync()
    driver.append(message(in_ms=250_000, size=300))
    driver.sync()


def very_late(driver: Driver) -> None:
    """Commit half messages older than ``copy_after_ms``, so that the commit copies them."""
    message = driver.message
    old = driver.prepare(message(size=200), message(("stock", 0), size=200))
    driver.prepare(message(), transaction_id="late-parts", number=0)
    driver.sync()
    driver.clock.advance(seconds=9)
    young = driver.prepare(message(), transaction_id="late-parts", number=1)
    driver.sync()
    driver.clock.advance(seconds=2)
    driver.commit(old)
    driver.sync()
    # Its first request is old; the request that the commit names is not.
    driver.commit(young)
    driver.prepare(message(), transaction_id="late-task", number=0, bulk=True)
    driver.sync()
    driver.clock.advance(seconds=11)
    driver.decide_batch("late-task", batch_id=8)
    driver.sync()


def old_and_needed(driver: Driver) -> None:
    """Run retention with half messages in the way that are undecided, parked or not yet due."""
    message = driver.message
    for _ in range(4):
        driver.append(message(size=700), message(("stock", 0), size=700))
        driver.sync()
        driver.clock.advance(seconds=5)
    driver.clock.advance(seconds=35)
    driver.retain()
    driver.append(message(size=700))
    driver.sync()
    driver.clock.advance(seconds=25)
    driver.retain()
    driver.release()
    driver.sync()
    driver.judge()


def settle_the_old(driver: Driver) -> None:
    message = driver.message
    undecided = driver.open_transactions()
    waiting = [row for row in driver.world.rows.values() if row.head is None and row.is_waiting]
    driver.recall(waiting[-1].number)
    driver.prepare(message(), transaction_id="open-parts", number=2)
    driver.sync()
    for transaction in undecided:
        if transaction.state is State.PREPARED:
            driver.check(transaction.rows[-1])
            driver.sync()
    driver.commit(undecided[0].head)
    driver.roll_back(undecided[1].head)
    driver.sync()
    for transaction in undecided[2:]:
        driver.commit(transaction.head)
        driver.sync()
    for _ in range(4):
        driver.append(message(size=900), message(size=900))
        driver.sync()
        driver.clock.advance(seconds=20)
    driver.retain()
    driver.release()
    driver.sync()


def many_in_one_flush(driver: Driver) -> None:
    """Group commit: several commands and one flush, across the end of a segment."""
    message = driver.message
    for _ in range(3):
        rows = [driver.prepare(message(QUEUES[n % 3], size=300)) for n in range(4)]
        driver.append(message(size=500))
        driver.commit(rows[0])
        driver.roll_back(rows[1])
        driver.check(rows[2])
        driver.sync()
        driver.commit(rows[2])
        driver.do(c.Park(half_offset=rows[3], reason="by hand"))
        driver.sync()
