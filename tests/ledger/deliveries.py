"""Messages as a handler gets them, and the record of consumed ones."""

from __future__ import annotations

from escrowmq.client.messages.messages import Received
from tests.ledger.shops import Shop

TOPIC = "order-paid"


def delivery(message_id: str = "m-1", body: bytes = b"1", topic: str = TOPIC) -> Received:
    return Received(
        topic=topic,
        body=body,
        key="",
        keys=(),
        tag="",
        properties={},
        message_id=message_id,
        transaction_id="",
        broker_name="broker-a",
        queue_id=0,
        queue_offset=0,
        retries=0,
        born_at_ms=0,
        visible_at_ms=0,
        log_offset=0,
        queue_topic=topic,
    )


def consumed(shop: Shop) -> set[str]:
    """Return the ids of the messages whose effect is in the database."""
    return {
        row[0]
        for row in shop.run("SELECT message_id FROM escrowmq_consumed WHERE consumed_at_ms > 0")
    }
