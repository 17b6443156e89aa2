"""A shop for audits: a broker, a lake, a ledger, a table of orders and a consumer group."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from escrowmq.client.ledger_table import SqlLedger
from escrowmq.client.own_calls import OwnCalls
from escrowmq.model.errors import Unavailable
from escrowmq.pipeline.archive.events import EventStream
from escrowmq.pipeline.archive.messages import MessageStream
from escrowmq.pipeline.audit.business import BusinessTable
from escrowmq.pipeline.audit.compare import AuditRequest
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.protocol.bodies import encode_body
from escrowmq.protocol.cluster_bodies import GroupConfig
from escrowmq.protocol.codes import RequestCode
from escrowmq.protocol.consumer_headers import UpdateOffsetHeader
from escrowmq.protocol.headers import Header
from escrowmq.testing import InProcessBroker
from tests.spark.audit_day import Day
from tests.spark.lakeside import Lakeside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAID = "paid-orders"
ARCHIVE_TRIES_MAX = 5


class Shop:
    """Sells, and lies if it is told to."""

    def __init__(self, spark: SparkSession, broker: InProcessBroker, folder: Path) -> None:
        self.broker = broker
        self.day = Day(broker.broker_address)
        #: Orders have a topic of their own.
        self.orders = Day(broker.broker_address, topic=PAID)
        self.lake = Lake(folder / "lake")
        # One after the other, and none that no audit looks at.
        self._sides = [
            Lakeside(spark, broker, folder, [kind]) for kind in (MessageStream, EventStream)
        ]
        self.url = f"sqlite:///{folder / 'shop.db'}"
        self._file = folder / "shop.db"
        self.ledger = SqlLedger(self.url).create()
        # Who reads does not wait for who writes.
        self.sql("PRAGMA journal_mode = WAL")
        self.sql("CREATE TABLE orders (id TEXT, paid INTEGER)")

    def archive(self) -> None:
        """Take what is there into the lake; a run that fails is tried again, as by the service."""
        for side in self._sides:
            for left in reversed(range(ARCHIVE_TRIES_MAX)):
                try:
                    side.archive()
                    break
                except Unavailable:
                    # On a busy machine Spark does not wait long for a worker to start.
                    if not left:
                        raise

    def sql(self, text: str, *values: object) -> None:
        """Do something in the shop's database."""
        with closing(sqlite3.connect(self._file)) as link, link:
            link.execute(text, values)

    def row(self, name: str, outcome: str = "committed") -> None:
        """Write a ledger's row."""
        columns = "(transaction_id, producer_group, outcome, written_at_ms)"
        now_ms = self.broker.clock.now_ms()
        text = f"INSERT INTO escrowmq_ledger {columns} VALUES (?, 'pay', ?, ?)"
        self.sql(text, name, outcome, now_ms)

    def book(self, name: str, *, decided: str = "commit", row: str = "committed") -> None:
        """A transaction with a ledger; what is empty is left out."""
        self.day.hold(name, ledger=self.ledger)
        if row:
            self.row(name, row)
        if decided:
            self.day.decide(decided, name)

    def sell(self, name: str, *, rows: int = 1, messages: int = 1, decided: bool = True) -> None:
        """An order: its row and its message, each under the order's name."""
        for _ in range(rows):
            self.sql("INSERT INTO orders VALUES (?, 1)", name)
        for number in range(messages):
            transaction = f"{name}-{number}"
            self.orders.hold(transaction, [self.orders.sent(key=name)])
            if decided:
                self.orders.commit(transaction)

    def read_up_to(self, group: str, offset: int, topic: str = PAID) -> None:
        """A consumer group says how far it is."""
        header = UpdateOffsetHeader(
            consumer_group=group, topic=topic, queue_id=0, commit_offset=offset
        )
        made = encode_body(GroupConfig(name=group))
        with OwnCalls(self.broker.broker_address) as calls:
            calls.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Header(), made)
            calls.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    def plant_offset(self, group: str, offset: int, topic: str = PAID) -> None:
        """Have the broker believe that a group is beyond its queue: it takes no such commit."""
        self.read_up_to(group, 0, topic)
        server: Any = self.broker._running
        server.broker.meta.set_offset(group, topic, 0, offset)

    def request(self, **more: Any) -> AuditRequest:  # noqa: ANN401 -- fields are of all types
        """An audit of all of it."""
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
    """A shop with a broker of its own."""
    with InProcessBroker(data=folder / "data", **settings) as broker:
        yield Shop(spark, broker, folder)
