"""A shop for audits: a broker, a lake, a ledger, a table of orders and a consumer group."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import Unavailable
from escrowmq.pipeline.archive.events import EventStream
from escrowmq.pipeline.archive.messages import MessageStream
from escrowmq.pipeline.audit.business import BusinessTable
from escrowmq.pipeline.audit.compare import AuditRequest
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.cluster_bodies import GroupConfig
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.consumer_headers import UpdateOffsetHeader
from escrowmq.protocol.remoting.headers import Header
from escrowmq.testing import InProcessBroker
from tests.spark.audit_day import Day
from tests.spark.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAID = "paid-orders"
ARCHIVE_TRIES_MAX = 5


class Shop:
    """A shop that can also plant wrong data."""

    def __init__(self, spark: SparkSession, broker: InProcessBroker, folder: Path) -> None:
        self.broker = broker
        self.day = Day(broker.broker_address)
        #: Orders have their own topic.
        self.orders = Day(broker.broker_address, topic=PAID)
        self.lake = Lake(folder / "lake")
        # One stream at a time, and only the streams that audits read.
        self._sides = [
            Lakeside(spark, broker, folder, [kind]) for kind in (MessageStream, EventStream)
        ]
        self.url = f"sqlite:///{folder / 'shop.db'}"
        self._file = folder / "shop.db"
        self.ledger = SqlLedger(self.url).create()
        # In this mode, readers do not wait for writers.
        self.sql("PRAGMA journal_mode = WAL")
        self.sql("CREATE TABLE orders (id TEXT, paid INTEGER)")

    def archive(self) -> None:
        """Archive everything into the lake; retry a failed run, as the service does."""
        for side in self._sides:
            for left in reversed(range(ARCHIVE_TRIES_MAX)):
                try:
                    side.archive()
                    break
                except Unavailable:
                    # On a busy machine, Spark may stop waiting for a worker to start.
                    if not left:
                        raise

    def sql(self, text: str, *values: object) -> None:
        """Run a statement in the shop's database."""
        with closing(sqlite3.connect(self._file)) as db, db:
            db.execute(text, values)

    def row(self, name: str, outcome: str = "committed") -> None:
        """Write a ledger row."""
        columns = "(transaction_id, producer_group, outcome, written_at_ms)"
        now_ms = self.broker.clock.now_ms()
        text = f"INSERT INTO escrowmq_ledger {columns} VALUES (?, 'pay', ?, ?)"
        self.sql(text, name, outcome, now_ms)

    def book(self, name: str, *, decided: str = "commit", row: str = "committed") -> None:
        """Make a transaction with a ledger; an empty argument skips its step."""
        self.day.hold(name, ledger=self.ledger)
        if row:
            self.row(name, row)
        if decided:
            self.day.decide(decided, name)

    def sell(self, name: str, *, rows: int = 1, messages: int = 1, decided: bool = True) -> None:
        """Make an order: its rows and its messages, each under the order's name."""
        for _ in range(rows):
            self.sql("INSERT INTO orders VALUES (?, 1)", name)
        for number in range(messages):
            transaction = f"{name}-{number}"
            self.orders.hold(transaction, [self.orders.sent(key=name)])
            if decided:
                self.orders.commit(transaction)

    def read_up_to(self, group: str, offset: int, topic: str = PAID) -> None:
        """Commit a consumer group's offset."""
        header = UpdateOffsetHeader(
            consumer_group=group, topic=topic, queue_id=0, commit_offset=offset
        )
        made = encode_body(GroupConfig(name=group))
        with NativeCalls(self.broker.broker_address) as calls:
            calls.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Header(), made)
            calls.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    def plant_offset(self, group: str, offset: int, topic: str = PAID) -> None:
        """Set a group's offset beyond its queue directly: the broker refuses such a commit."""
        self.read_up_to(group, 0, topic)
        server: Any = self.broker._running
        server.broker.meta.set_offset(group, topic, 0, offset)

    def request(self, **more: Any) -> AuditRequest:  # noqa: ANN401 -- fields are of all types
        """Return the request for an audit of everything."""
        told: dict[str, Any] = {
            "brokers": (self.broker.broker_address,),
            "topics": (PAID,),
            "ledgers": {"shop": self.url},
            "lake": self.lake.uri,
            "business": BusinessTable(url=self.url, table="orders", key="id", where="paid = 1"),
        }
        return AuditRequest(**(told | more))


@contextmanager
def opened_shop(spark: SparkSession, folder: Path, **settings: Any) -> Iterator[Shop]:  # noqa: ANN401 -- of InProcessBroker
    """Yield a shop with its own broker."""
    with InProcessBroker(data=folder / "data", **settings) as broker:
        yield Shop(spark, broker, folder)
