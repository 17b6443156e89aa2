"""Wherever a service in a chain is killed, its consumed, written and sent messages agree."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from escrowmq.client.consumer.consumer import Consumer
from tests.ledger.chain_victim import POINTS, SHIPPING, shipping
from tests.ledger.chains import SHIPPED
from tests.ledger.deliveries import consumed
from tests.ledger.kill import WAYS, Scene, scene
from tests.ledger.market import PAID
from tests.ledger.shops import Shop, eventually


def test_wherever_a_chain_is_killed_effect_consumed_row_and_message_agree(
    shop: Shop, tmp_path: Path
) -> None:
    with scene(shop, tmp_path, "tests.ledger.chain_victim") as there:
        # The last victims acknowledge nothing, so their messages are delivered again.
        lives = [(way, point) for way in WAYS for point in reversed(POINTS)]
        for number, (way, point) in enumerate(lives, 1):
            there.survivor.send(PAID, b"%d" % number, message_id=f"m-{number}")
            there.nursery.live(way, point, number)
            is_in = POINTS.index(point) > POINTS.index("before-COMMIT")
            facts = (number in shop.orders(), f"m-{number}" in consumed(shop))
            assert facts == (is_in, is_in), (way, point)
        there.settle()
        agree(there)
        assert len(shop.orders()) < len(lives)
        deliver_again(there, len(lives))
        there.settle()
        agree(there)
        assert shop.orders() == set(range(1, len(lives) + 1))


def agree(there: Scene) -> None:
    """Assert that each order was consumed, and has one message."""
    orders = there.shop.orders()
    assert consumed(there.shop) == {f"m-{number}" for number in orders}
    assert not there.shop.run("SELECT 1 FROM escrowmq_consumed WHERE consumed_at_ms = 0")
    assert Counter(there.heard(SHIPPED)) == Counter(orders)


def deliver_again(there: Scene, count: int) -> None:
    """Let a survivor handle the messages that no victim acknowledged."""
    consumer = Consumer(there.name_server, SHIPPING, concurrency=1)
    consumer.subscribe(PAID)(shipping("session", there.shop, consumer, there.survivor))
    with consumer:
        eventually(lambda: len(there.shop.orders()) == count)
