"""The demo's services on a real broker, without kills."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec
import pytest

from escrowmq.client.producer.producer import Producer
from escrowmq.demo import order_service
from escrowmq.demo.order_service import GROUP, PLAIN, TRANSACTIONAL, OrderService, death_mark
from escrowmq.demo.processes import last_line
from escrowmq.demo.shop import DOWNSTREAM, EFFECTS, ORDERS, Shop, ShopCounts
from escrowmq.demo.step_times import OrderStep, read_times
from escrowmq.testing import InProcessBroker

NUMBER = 12
STEPS = {
    PLAIN: {OrderStep.WAIT, OrderStep.INSERT, OrderStep.COMMIT, OrderStep.SEND},
    TRANSACTIONAL: set(OrderStep) - {OrderStep.SEND},
}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path / "run")
    made.make(NUMBER)
    return made


def task(shop: Shop, broker: InProcessBroker, mode: str) -> order_service.OrderServiceTask:
    return order_service.OrderServiceTask(
        mode=mode,
        name_server=broker.address,
        folder=str(shop.folder),
        topic="order-paid",
        orders=NUMBER,
        threads=3,
        max_duration_s=30.0,
        die_after_commit=[4],
        parent=os.getpid(),
    )


@pytest.mark.parametrize("mode", [PLAIN, TRANSACTIONAL])
def test_an_unpaid_order_is_paid_with_a_message(shop: Shop, mode: str) -> None:
    with shop.open(ORDERS) as db:
        db.execute("INSERT INTO orders VALUES (1, 1)")
        db.commit()
    # The mark says that the service has died at order 4 before, so it does not die there again.
    death_mark(shop.folder, 4).touch()
    ledger = shop.ledger(ORDERS) if mode == TRANSACTIONAL else None
    with InProcessBroker() as broker, Producer(broker.address, GROUP, ledger=ledger) as producer:
        service = OrderService(task(shop, broker, mode), producer)
        service.run()
        sent = sorted(int(message.body) for message in broker.messages("order-paid"))
    assert shop.paid() == set(range(1, NUMBER + 1))
    assert sent == list(range(2, NUMBER + 1)), "order 1 was paid by somebody who sent nothing"
    service.times.write(shop.folder)
    times = read_times(shop.folder)
    assert times.orders == NUMBER - 1
    assert times.median_ms.keys() == STEPS[mode]
    assert 0 < times.median_ms[OrderStep.COMMIT] < times.order_ms


def act(shop: Shop, name: str, *orders: int) -> None:
    with shop.open(name) as db:
        db.executemany(EFFECTS[name], [(order,) for order in orders])
        db.commit()


def test_every_effect_that_is_missing_or_too_many_is_counted(shop: Shop) -> None:
    with shop.open(ORDERS) as db:
        db.executemany("INSERT INTO orders VALUES (?, 1)", [(1,), (2,), (3,)])
        db.commit()
    for name in DOWNSTREAM:
        act(shop, name, 1, 2, 3)
    assert shop.wrong_effects() == dict.fromkeys(DOWNSTREAM, 0)
    act(shop, "logistics", 2)
    act(shop, "cart", 2)
    act(shop, "points", 5)
    with shop.open(ORDERS) as db:
        db.execute("INSERT INTO orders VALUES (4, 1)")
        db.commit()
    # Order 4 is missing everywhere, two services acted twice on order 2, and 5 was never paid.
    assert shop.wrong_effects() == dict.fromkeys(DOWNSTREAM, 2)


def test_the_databases_can_be_counted_while_they_are_written(shop: Shop) -> None:
    counts = ShopCounts(shop)
    assert counts.paid() == 0
    with shop.open(ORDERS) as db:
        db.execute("INSERT INTO orders VALUES (1, 1)")
        assert counts.paid() == 0
        db.commit()
        assert counts.paid() == 1
    assert counts.consumed() == dict.fromkeys(DOWNSTREAM, 0)
    counts.close()


def test_the_last_word_of_a_process_is_found(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_text("Traceback\n  here\nValueError: no\n\n", encoding="utf-8")
    assert last_line(log) == "ValueError: no"


def test_a_message_that_left_first_stays_without_its_order(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DeathError(BaseException):
        pass

    def die(_process: int, _signal: int) -> None:
        raise DeathError

    monkeypatch.setattr("escrowmq.demo.order_service.os.kill", die)
    with InProcessBroker() as broker, Producer(broker.address, GROUP) as producer:
        given = msgspec.structs.replace(task(shop, broker, PLAIN), die_before_commit=[5])
        # It dies before the COMMIT of order 5 and after that of order 4, and is started again.
        for _ in range(3):
            with contextlib.suppress(DeathError):
                OrderService(given, producer).run()
        sent = {int(message.body) for message in broker.messages("order-paid")}
    assert all(death_mark(shop.folder, order).exists() for order in (4, 5))
    # The customer of order 5 has ordered anew, as number 13.
    assert shop.paid() == set(range(1, NUMBER + 2)) - {5}
    assert sent - shop.paid() == {5}
    assert shop.paid() - sent == {4}
