"""A broker, a database with a ledger, and settle rounds for tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.look_up.ledger_config import LedgerConfig
from escrowmq.look_up.ledgers import Ledgers
from escrowmq.pipeline.settle.settling import settle_round
from escrowmq.protocol.native.headers import HoldManyHeader, ListTransactionsHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import SentInRow, TransactionRow
from escrowmq.testing import InProcessBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from escrowmq.pipeline.settle.round_summary import RoundSummary

GROUP = "orders"
TOPIC = "order-paid"
ALLOWED_MS = 60_000
#: After this time, a first check is due and every deadline is past.
LATE_S = 61


def jobs_begun(spark: SparkSession) -> int:
    """Return how many jobs this Spark session has begun, of any group.

    The status tracker cannot tell: it learns of jobs later, and an earlier test may have left this
    thread in a job group.
    """
    java = spark.sparkContext._jsc
    begun: int = java.sc().dagScheduler().numTotalJobs()
    return begun


@dataclass(kw_only=True)
class Database:
    """A file with a ledger in it."""

    path: Path
    uuid: str = field(init=False)

    def __post_init__(self) -> None:
        self.uuid = SqlLedger(self.url).create()

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def run(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(sql, values).fetchall()

    def commit(self, *ids: str, group: str = GROUP, outcome: str = "committed") -> None:
        """Write rows as a sender's own transaction does."""
        for one in ids:
            self.run("INSERT INTO escrowmq_ledger VALUES (?, ?, ?, 1)", one, group, outcome)

    def outcomes(self) -> dict[str, str]:
        return dict(self.run("SELECT transaction_id, outcome FROM escrowmq_ledger"))


def hold(
    broker: InProcessBroker,
    ids: Iterable[str],
    *,
    ledger: str = "",
    group: str = GROUP,
    allowed_ms: int = ALLOWED_MS,
) -> None:
    """Hold transactions of one message each; the body is the transaction's id."""
    rows = [
        SentInRow(
            transaction_id=one,
            topic=TOPIC,
            queue_id=0,
            body=one.encode(),
            properties="",
            flag=0,
            sys_flag=0,
            born_at_ms=1,
        )
        for one in ids
    ]
    header = HoldManyHeader(producer_group=group, ledger=ledger, allowed_ms=allowed_ms)
    with NativeCalls(broker.broker_address) as calls:
        answer = calls.call(NativeCode.HOLD_MANY, header, rows)
    assert not any(row.refused for row in answer.rows)


def transactions(broker: InProcessBroker) -> dict[str, TransactionRow]:
    """Return the broker's row of each transaction, by id."""
    wanted = ListTransactionsHeader(states="prepared,committed,rolled_back,parked", with_ids=True)
    with NativeCalls(broker.broker_address) as calls:
        return {row.transaction_id: row for row in calls.rows(NativeCode.LIST_TRANSACTIONS, wanted)}


def states(broker: InProcessBroker) -> dict[str, int]:
    """Return the state code by id: 0 prepared, 1 committed, 2 rolled back, 3 parked."""
    return {one: row.state for one, row in transactions(broker).items()}


def visible(broker: InProcessBroker) -> list[str]:
    """Return the bodies that consumers see, sorted."""
    return sorted(message.body.decode() for message in broker.messages(TOPIC))


def ledgers(*databases: Database | str) -> Ledgers:
    """Return a config with these ledgers."""
    urls = [one if isinstance(one, str) else one.url for one in databases]
    return Ledgers({f"shop{number}": LedgerConfig(url=url) for number, url in enumerate(urls)})


def settle(
    spark: SparkSession, broker: InProcessBroker, *databases: Database | str, asks_max: int = 100
) -> RoundSummary:
    """Run one round over one broker."""
    return settle_round(spark, [broker.broker_address], ledgers(*databases), asks_max=asks_max)
