"""EscrowMQ: a message goes out if, and only if, your database transaction commits.

Each name is imported on first use, so a program loads only the modules that it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from escrowmq.client.codecs import Codec, JsonCodec
    from escrowmq.client.config import ConsumerConfig, ProducerConfig, Start
    from escrowmq.client.consumer import AsyncConsumer, Consumer
    from escrowmq.client.handling import AlreadyConsumed, GiveUp, RetryLater
    from escrowmq.client.ledger_table import SqlLedger
    from escrowmq.client.listener import Executed, TransactionListener
    from escrowmq.client.messages import Message, Received, SendStatus, Sent
    from escrowmq.client.outgoing import Resolution
    from escrowmq.client.producer import AsyncProducer, Producer
    from escrowmq.client.transaction_order import TransactionState
    from escrowmq.model.errors import (
        EscrowError,
        OutcomeUnknown,
        ProtocolViolation,
        RequestRefused,
        StoreCorrupt,
        StoreUnusable,
        Unavailable,
    )

__all__ = [
    "AlreadyConsumed",
    "AsyncConsumer",
    "AsyncProducer",
    "Codec",
    "Consumer",
    "ConsumerConfig",
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
    "TransactionListener",
    "TransactionState",
    "Unavailable",
]

_HOMES = {
    "client.codecs": ("Codec", "JsonCodec"),
    "client.config": ("ConsumerConfig", "ProducerConfig", "Start"),
    "client.consumer": ("AsyncConsumer", "Consumer"),
    "client.handling": ("AlreadyConsumed", "GiveUp", "RetryLater"),
    "client.ledger_table": ("SqlLedger",),
    "client.listener": ("Executed", "TransactionListener"),
    "client.messages": ("Message", "Received", "SendStatus", "Sent"),
    "client.outgoing": ("Resolution",),
    "client.producer": ("AsyncProducer", "Producer"),
    "client.transaction_order": ("TransactionState",),
    "model.errors": (
        "EscrowError",
        "OutcomeUnknown",
        "ProtocolViolation",
        "RequestRefused",
        "StoreCorrupt",
        "StoreUnusable",
        "Unavailable",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
