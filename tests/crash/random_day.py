"""Random days: any command that a broker accepts, in any order, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.transaction import commands as c
from escrowmq.transaction.states import State
from tests.crash.driver import Driver
from tests.crash.model import Transaction
from tests.crash.workload import QUEUES


def random_day(driver: Driver, rng: Random, steps: int) -> None:
    """Run `steps` steps in batches, with chores between batches."""
    for _ in range(steps):
        random_step(driver, rng)
        if rng.random() < 0.5:
            driver.sync()
            random_chore(driver, rng)
    driver.sync()
    driver.judge()


def random_step(driver: Driver, rng: Random) -> None:
    """Run one command, or a few that belong together."""
    act = rng.choices(list(STEPS), list(STEPS.values()))[0]
    act(driver, rng)


def random_chore(driver: Driver, rng: Random) -> None:
    """Run a chore that happens between two batches; nothing may be waiting for ``sync``."""
    chance = rng.random()
    if chance < 0.15:
        driver.retain()
    elif chance < 0.25:
        driver.checkpoint()
    elif chance < 0.30:
        driver.kill()
    elif chance < 0.33:
        driver.close()
    elif chance < 0.7:
        driver.clock.advance(ms=rng.choice((1, 500, 4_000, 11_000, 25_000)))
    elif chance < 0.73:
        driver.clock.jump(ms=-rng.choice((1, 3_000, 20_000)))


def some_messages(driver: Driver, rng: Random, *, after_ms: int = 0) -> list[SentMessage]:
    count = rng.choice((1, 1, 1, 2, 3, 9))
    size = rng.choice((0, 20, 200, 1_500))
    return [
        driver.message(rng.choice(QUEUES), size=size, after_ms=after_ms * rng.randrange(2))
        for _ in range(count)
    ]


def pick(driver: Driver, rng: Random, *states: State) -> Transaction | None:
    known = driver.open_transactions(*states)
    return rng.choice(known) if known else None


def append(driver: Driver, rng: Random) -> None:
    driver.append(*some_messages(driver, rng))


def schedule(driver: Driver, rng: Random) -> None:
    count = rng.choice((1, 1, 2, 9))
    times = [rng.choice((1, 2_000, 30_000, 200_000)) for _ in range(count)]
    driver.append(*(driver.message(rng.choice(QUEUES), in_ms=in_ms) for in_ms in times))


def prepare(driver: Driver, rng: Random) -> None:
    driver.prepare(*some_messages(driver, rng, after_ms=rng.choice((0, 0, 1_500, 30_000))))


def resend(driver: Driver, rng: Random) -> None:
    """Repeat the request of a stock client that never got the answer to its only half message."""
    known = pick(driver, rng)
    if known is not None and len(known.rows) == 1:
        message = driver.world.rows[known.head].message
        driver.prepare(message, transaction_id=known.transaction_id, group=known.group)


def join(driver: Driver, rng: Random) -> None:
    known = pick(driver, rng, State.PREPARED)
    if known is None or not known.is_numbered or rng.random() < 0.4:
        name = f"numbered-{len(driver.history)}"
        driver.prepare(*some_messages(driver, rng), transaction_id=name, number=0)
        return
    driver.do(
        c.Prepare(
            group=rng.choice((known.group, known.group, known.group, "stranger")),
            transaction_id=known.transaction_id,
            messages=tuple(some_messages(driver, rng, after_ms=rng.choice((0, 0, 2_000)))),
            number=len(known.requests) + rng.choice((0, 0, 0, 0, -1, 1)),
        )
    )


def end(driver: Driver, rng: Random) -> None:
    known = pick(driver, rng)
    if known is None:
        return
    resolution = rng.choice((Resolution.COMMIT, Resolution.COMMIT, Resolution.ROLLBACK))
    row = rng.choice(known.rows)
    driver.do(c.End(half_offset=row, resolution=resolution, by=f"by-{row}", group=known.group))


def end_any(driver: Driver, rng: Random) -> None:
    """End any row: decided long ago, not a half message, or not existing."""
    row = rng.randrange(len(driver.world.rows) + 2)
    driver.do(c.End(half_offset=row, resolution=rng.choice(list(Resolution)), by="anybody"))


def check(driver: Driver, rng: Random) -> None:
    known = pick(driver, rng)
    if known is not None:
        driver.check(rng.choice(known.rows))


def park(driver: Driver, rng: Random) -> None:
    known = pick(driver, rng)
    if known is not None:
        driver.do(c.Park(half_offset=rng.choice(known.rows), reason="any"))


def resume(driver: Driver, rng: Random) -> None:
    known = pick(driver, rng, State.PARKED)
    if known is not None:
        driver.do(c.Resume(half_offset=rng.choice(known.rows), by="operator"))


def obey(driver: Driver, rng: Random) -> None:
    known = pick(driver, rng)
    if known is not None:
        checks_sent = known.checks_sent + rng.choice((0, 0, 0, 1))
        driver.do(
            c.Verdict(
                half_offset=known.head,
                kind=rng.choice(list(c.VerdictKind)),
                state=known.state,
                checks_sent=checks_sent,
            )
        )


def obey_many(driver: Driver, rng: Random) -> None:
    """Send verdicts on first and later rows, decided and unknown ones, some of them twice."""
    known = driver.open_transactions()
    rows = [rng.choice(one.rows) for one in rng.sample(known, min(len(known), rng.choice((2, 9))))]
    rows += [rng.randrange(len(driver.world.rows) + 2) for _ in range(rng.choice((0, 0, 1, 2)))]
    driver.obey(*((row, rng.random() < 0.7) for row in rows), is_outdated=rng.random() < 0.1)


def batch(driver: Driver, rng: Random) -> None:
    number = len(driver.history)
    names = [f"task-{number}-{task}" for task in range(rng.choice((1, 2)))]
    for name in names:
        for part in range(rng.choice((1, 2))):
            driver.prepare(*some_messages(driver, rng), transaction_id=name, number=part, bulk=True)
    if rng.random() < 0.5:
        driver.sync()
        driver.clock.advance(ms=rng.choice((0, 12_000)))
    batch_id: int | str = rng.choice((number, number, 0, f"name-{number}"))
    driver.decide_batch(*names, batch_id=batch_id, query_id=rng.choice(("query", "query", "other")))


def release(driver: Driver, _rng: Random) -> None:
    driver.release()


def recall(driver: Driver, rng: Random) -> None:
    """Recall any row: waiting, visible, recalled before, a half message, or not existing."""
    waiting = [row.number for row in driver.world.rows.values() if row.is_waiting]
    rows = waiting or [rng.randrange(len(driver.world.rows) + 2)]
    row = rng.choice(rows)
    if rng.random() < 0.3:
        row = rng.randrange(len(driver.world.rows) + 2)
    driver.recall(row)
    if rng.random() < 0.3:
        driver.recall(row)


#: The steps and their weights.
STEPS: dict[Callable[[Driver, Random], None], int] = {
    append: 4,
    schedule: 2,
    prepare: 5,
    resend: 1,
    join: 4,
    end: 6,
    end_any: 2,
    check: 3,
    park: 2,
    resume: 1,
    obey: 2,
    obey_many: 3,
    batch: 1,
    release: 3,
    recall: 2,
}
