"""Faults of a ledger's database: UNKNOWN, reported, never a COMMIT, never a fence.

Each kind of database has all of its faults in one round, beside a healthy database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.settle.settling import settle_round
from escrowmq.protocol.native.ledgers import LedgerRow
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.ledger.conftest import postgres_server
from tests.ledger.shops import Shop
from tests.spark.settle_shop import GROUP, LATE_S, hold, ledgers, states, visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from escrowmq.look_up.ledgers import Ledgers
    from escrowmq.pipeline.settle.round_summary import RoundSummary

PREPARED, COMMITTED, ROLLED_BACK = range(3)
ODD = ("COMMITTED", "committed ", "commit", "", "rolled back", "1")
#: A ledger in which every lookup hangs.
SLOW_VIEW = (
    "CREATE VIEW escrowmq_ledger (transaction_id, producer_group, outcome) AS"
    " SELECT CAST(pg_sleep(3600) AS text), 'x', 'committed'"
)


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """Yield a PostgreSQL server that requires a password from the role `shop`."""
    with postgres_server() as server:
        rules = Path(server.pgdata) / "pg_hba.conf"
        rules.write_text("local all shop scram-sha-256\n" + rules.read_text())
        with closing(Shop(kind="postgresql", url=server.get_uri())) as admin:
            admin.run("SELECT pg_reload_conf()")
            admin.run("CREATE ROLE shop SUPERUSER LOGIN PASSWORD 'right'")
        yield server.get_uri()


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Case:
    """Databases of one kind, each with its transactions: `NAME there` is in the ledger."""

    def __init__(self, broker: InProcessBroker, make: Callable[[str], Shop]) -> None:
        self.broker = broker
        self.shops: dict[str, Shop] = {}
        self.uuids: dict[str, str] = {}
        self._make = make

    def add(self, name: str) -> Shop:
        shop = self.shops[name] = self._make(name)
        self.uuids[name] = shop.ledger().create()
        hold(self.broker, [f"{name} there", f"{name} absent"], ledger=self.uuids[name])
        self.write(name, f"{name} there", "committed")
        return shop

    def write(self, name: str, transaction_id: str, outcome: str) -> None:
        values = f"'{transaction_id}', '{GROUP}', '{outcome}', 1"
        self.shops[name].run(f"INSERT INTO escrowmq_ledger VALUES ({values})")

    def add_odd(self) -> None:
        """Add a database with rows that our SDK does not write."""
        self.add("odd")
        keys = {f"odd <{word}>": word for word in ODD}
        hold(self.broker, keys, ledger=self.uuids["odd"])
        for key, word in keys.items():
            self.write("odd", key, word)

    def configured(self) -> Ledgers:
        """Return a config of all databases, after each has reported its UUID once."""
        known = ledgers(*(shop.url for shop in self.shops.values()))
        assert len(known.known().urls) == len(self.shops)
        return known

    def round(self, spark: SparkSession, known: Ledgers) -> RoundSummary:
        return settle_round(spark, [self.broker.broker_address], known)

    def check(self, *good: str) -> None:
        """Assert that only these are decided, and correctly."""
        found = states(self.broker)
        for name in good:
            assert found.pop(f"{name} there") == COMMITTED
            assert found.pop(f"{name} absent") == ROLLED_BACK
        assert set(found.values()) == {PREPARED}
        assert visible(self.broker) == sorted(f"{name} there" for name in good)


def reported_ledgers(broker: InProcessBroker) -> list[LedgerRow]:
    """Return the rounds' reports to the broker."""
    with NativeCalls(broker.broker_address) as calls:
        return [row for row in calls.call(NativeCode.LIST_LEDGERS).rows if row.name]


def test_nothing_that_is_wrong_with_a_file_decides_anything(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    case = Case(broker, lambda name: Shop(kind="sqlite", url=f"sqlite:///{tmp_path / name}.db"))
    for name in ("good", "down", "other", "nameless", "missing", "locked"):
        case.add(name)
    case.add_odd()
    known, shops = case.configured(), case.shops
    away = tmp_path / "away.db"
    Path(shops["down"].path).rename(away)
    shops["other"].run("UPDATE escrowmq_ledger_id SET ledger_uuid = 'another'")
    shops["nameless"].run("DELETE FROM escrowmq_ledger_id")
    shops["missing"].run("DROP TABLE escrowmq_ledger")
    broker.advance(seconds=LATE_S)
    writer = shops["locked"].connect(isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    done = case.round(spark, known)
    assert done.unknown == {
        "ledger_unreachable": 2,
        "ledger_missing": 4,
        "locked": 2,
        "odd_row": len(ODD),
    }
    # No configured database has that UUID any more, so its producers must be asked.
    assert (done.no_ledger, done.no_producer, done.asked) == (2, 2, 0)
    case.check("good", "odd")
    reported = {row.name: row for row in reported_ledgers(broker)}
    names = list(shops)
    assert {
        name: reported[f"shop{at}"].error
        for at, name in enumerate(names)
        if not reported[f"shop{at}"].is_reachable
    } == {
        "down": "ledger_unreachable",
        "nameless": "ledger_missing",
        # The driver read the UUIDs, and the tasks found the fault.
        "missing": "ledger_missing",
        "locked": "locked",
    }
    assert "no such table" in reported[f"shop{names.index('missing')}"].error_text
    assert reported[f"shop{names.index('other')}"].uuid_before == case.uuids["other"]
    away.rename(shops["down"].path)
    writer.execute("ROLLBACK")
    writer.close()
    for name in ("down", "other", "nameless", "locked"):
        assert shops[name].outcomes() == {f"{name} there": "committed"}
    # The next round settles a repaired ledger.
    shops["other"].run(f"UPDATE escrowmq_ledger_id SET ledger_uuid = '{case.uuids['other']}'")
    assert case.round(spark, known).committed == 3
    healed = {row.name: row.is_reachable for row in reported_ledgers(broker)}
    assert [name for at, name in enumerate(names) if not healed[f"shop{at}"]] == [
        "nameless",
        "missing",
    ]
    case.check("good", "odd", "down", "other", "locked")


def test_nothing_that_is_wrong_with_a_server_decides_anything(
    spark: SparkSession, broker: InProcessBroker, server_url: str, opened: ExitStack
) -> None:
    admin = opened.enter_context(closing(Shop(kind="postgresql", url=server_url)))

    def make(name: str) -> Shop:
        admin.run(f"CREATE DATABASE {name}")
        url = server_url.replace("/postgres?", f"/{name}?")
        assert url != server_url
        if name == "password":
            url = url.replace("//postgres:@", "//shop:right@")
        return opened.enter_context(closing(Shop(kind="postgresql", url=url)))

    case = Case(broker, make)
    for name in ("good", "down", "password", "other", "missing", "slow"):
        case.add(name)
    case.add_odd()
    known, shops = case.configured(), case.shops
    shops["other"].run("UPDATE escrowmq_ledger_id SET ledger_uuid = 'another'")
    shops["missing"].run("DROP TABLE escrowmq_ledger")
    shops["slow"].run("ALTER TABLE escrowmq_ledger RENAME TO kept")
    shops["slow"].run(SLOW_VIEW)
    shops["down"].close()
    shops["down"].looking = None
    allow(admin, "down", is_allowed=False)
    admin.run("ALTER ROLE shop PASSWORD 'another'")
    broker.advance(seconds=LATE_S)
    done = case.round(spark, known)
    assert done.unknown == {
        "ledger_unreachable": 4,
        "ledger_missing": 2,
        "too_slow": 2,
        "odd_row": len(ODD),
    }
    assert (done.no_ledger, done.no_producer, done.asked) == (2, 2, 0)
    case.check("good", "odd")
    allow(admin, "down", is_allowed=True)
    admin.run("ALTER ROLE shop PASSWORD 'right'")
    for name in ("down", "password", "other"):
        assert shops[name].outcomes() == {f"{name} there": "committed"}
    assert shops["slow"].run("SELECT transaction_id FROM kept") == [("slow there",)]
    assert case.round(spark, known).committed == 2
    case.check("good", "odd", "down", "password")


def allow(admin: Shop, name: str, *, is_allowed: bool) -> None:
    """Allow or forbid connections to a database; end the open ones."""
    admin.run(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS {is_allowed}")
    admin.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
