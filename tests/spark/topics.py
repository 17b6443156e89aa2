"""A broker with messages, for tests that read them with Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.spark_api import HAS_READ_LIMITS
from escrowmq.protocol.message.properties import format_properties
from escrowmq.protocol.native.headers import HoldHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import DecisionRow, SentRow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from escrowmq.testing import InProcessBroker

#: For tests of Spark 4.2 and later; tests/spark/test_old_stream_api.py covers older versions.
needs_read_limits = pytest.mark.skipif(not HAS_READ_LIMITS, reason="Spark has no read limits")
BORN_AT_MS = 1_700_000_000_000


def row(body: bytes = b"body", topic: str = "orders", queue_id: int = 0, **pairs: str) -> SentRow:
    """Make a message."""
    return SentRow(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties=format_properties(pairs).decode(),
        flag=7,
        sys_flag=0,
        born_at_ms=BORN_AT_MS,
    )


def send(broker: InProcessBroker, *rows: SentRow) -> None:
    """Store ordinary messages."""
    with NativeCalls(broker.broker_address) as calls:
        calls.call(NativeCode.SEND_MANY, rows=rows)


def hold(broker: InProcessBroker, transaction_id: str, *rows: SentRow) -> int:
    """Hold half messages; return the first one's offset."""
    header = HoldHeader(producer_group="shop", transaction_id=transaction_id, number=0)
    with NativeCalls(broker.broker_address) as calls:
        half_offset: int = calls.call(NativeCode.HOLD_HALVES, header, rows).header.half_offset
        return half_offset


def decide(broker: InProcessBroker, half_offset: int, resolution: str = "commit") -> None:
    """Decide a transaction."""
    decision = DecisionRow(
        half_offset=half_offset, resolution=resolution, producer_group=None, log_offset=None
    )
    with NativeCalls(broker.broker_address) as calls:
        calls.call(NativeCode.DECIDE_MANY, rows=[decision])


def collected(instant_ms: int) -> datetime:
    """Return what ``collect`` gives for a timestamp: naive, in this process's time zone."""
    return datetime.fromtimestamp(instant_ms / 1_000, UTC).astimezone().replace(tzinfo=None)


def bodies(frame: DataFrame) -> list[bytes]:
    """Return the bodies in the order of queue and offset."""
    found = frame.orderBy("topic", "queue_id", "queue_offset").select("body").collect()
    return [bytes(one["body"]) for one in found]


def read(spark: SparkSession, served: InProcessBroker, **options: Any) -> DataFrame:  # noqa: ANN401
    """Read a batch of the topic ``orders``, or of the topics in the options."""
    given = {"broker": served.broker_address, "topic": "orders", **options}
    return spark.read.format("escrowmq").options(**given).load()
