"""EscrowMQ: a message goes out if, and only if, your database transaction commits.

Each name is imported on first use, so a program loads only the modules that it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.lazy_names import importer

if TYPE_CHECKING:
    from escrowmq.client.config import ConsumerConfig, ProducerConfig, Start
    from escrowmq.client.consumer.consumer import AsyncConsumer, Consumer
    from escrowmq.client.ledger.table import SqlLedger
    from escrowmq.client.messages.codecs import Codec, JsonCodec
    from escrowmq.client.messages.handling import AlreadyConsumed, GiveUp, RetryLater
    from escrowmq.client.messages.messages import Message, Received, SendStatus, Sent
    from escrowmq.client.producer.listener import Executed, TransactionListener
    from escrowmq.client.producer.producer import AsyncProducer, Producer
    from escrowmq.client.producer.transaction_steps import TransactionState
    from escrowmq.model.credentials import Credentials
    from escrowmq.model.errors import (
        EscrowError,
        OutcomeUnknown,
        ProtocolViolation,
        RequestRefused,
        StoreCorrupt,
        StoreUnusable,
        Unavailable,
    )
    from escrowmq.model.resolution import Resolution
    from escrowmq.model.tls import Tls

__all__ = [
    "AlreadyConsumed",
    "AsyncConsumer",
    "AsyncProducer",
    "Codec",
    "Consumer",
    "ConsumerConfig",
    "Credentials",
    "EscrowError",
    "Executed",
    "GiveUp",
    "JsonCodec",
    "Message",
    "OutcomeUnknown",
    "Producer",
    "ProducerConfig",
    "ProtocolViolation",
    "Received",
    "RequestRefused",
    "Resolution",
    "RetryLater",
    "SendStatus",
    "Sent",
    "SqlLedger",
    "Start",
    "StoreCorrupt",
    "StoreUnusable",
    "Tls",
    "TransactionListener",
    "TransactionState",
    "Unavailable",
]

_HOMES = {
    "client.messages.codecs": ("Codec", "JsonCodec"),
    "client.config": ("ConsumerConfig", "ProducerConfig", "Start"),
    "client.consumer.consumer": ("AsyncConsumer", "Consumer"),
    "client.messages.handling": ("AlreadyConsumed", "GiveUp", "RetryLater"),
    "client.ledger.table": ("SqlLedger",),
    "client.producer.listener": ("Executed", "TransactionListener"),
    "client.messages.messages": ("Message", "Received", "SendStatus", "Sent"),
    "client.producer.producer": ("AsyncProducer", "Producer"),
    "client.producer.transaction_steps": ("TransactionState",),
    "model.credentials": ("Credentials",),
    "model.errors": (
        "EscrowError",
        "OutcomeUnknown",
        "ProtocolViolation",
        "RequestRefused",
        "StoreCorrupt",
        "StoreUnusable",
        "Unavailable",
    ),
    "model.resolution": ("Resolution",),
    "model.tls": ("Tls",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__getattr__ = importer(__name__, _HOME_OF)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
