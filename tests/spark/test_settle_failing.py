"""Databases and brokers that fail: UNKNOWN, reported, never a COMMIT, no delay for others."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from escrowmq import Producer, Resolution
from escrowmq.model.sink_attempt import SinkAttempt, SinkRun
from escrowmq.pipeline.settle.settling import settle_round
from escrowmq.testing import InProcessBroker
from tests.spark.settle_shop import (
    GROUP,
    LATE_S,
    Database,
    hold,
    ledgers,
    settle,
    states,
    transactions,
    visible,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREPARED, COMMITTED, ROLLED_BACK = range(3)


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(path=tmp_path / "shop.db")


def test_bad_ledgers_decide_nothing_and_the_good_one_decides(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    names = ("good", "down", "exchanged", "missing")
    shops = {name: Database(path=tmp_path / f"{name}.db") for name in names}
    for name, shop in shops.items():
        hold(broker, [f"{name} there", f"{name} absent"], ledger=shop.uuid)
        shop.commit(f"{name} there")
    known = ledgers(*shops.values())
    known.known()
    shops["down"].path.rename(tmp_path / "away.db")
    shops["exchanged"].run("UPDATE escrowmq_ledger_id SET ledger_uuid = 'another'")
    shops["missing"].run("DROP TABLE escrowmq_ledger")
    broker.advance(seconds=LATE_S)
    done = settle_round(spark, [broker.broker_address], known)
    assert done.unknown == {"ledger_unreachable": 2, "ledger_missing": 2}
    # No configured database has that UUID any more, so its producers are asked.
    assert (done.no_producer, done.committed, done.rolled_back) == (2, 1, 1)
    found = states(broker)
    assert (found.pop("good there"), found.pop("good absent")) == (COMMITTED, ROLLED_BACK)
    assert set(found.values()) == {PREPARED}
    assert visible(broker) == ["good there"]
    assert shops["exchanged"].outcomes() == {"exchanged there": "committed"}
    (tmp_path / "away.db").rename(shops["down"].path)
    assert shops["down"].outcomes() == {"down there": "committed"}


def test_a_pipeline_that_starts_while_a_ledger_is_down_waits_and_asks_no_producer(
    spark: SparkSession, broker: InProcessBroker, database: Database, tmp_path: Path
) -> None:
    """A producer's "unknown" would count as a check, and healthy transactions would be parked."""
    other = Database(path=tmp_path / "other.db")
    hold(broker, ["there", "absent"], ledger=database.uuid)
    hold(broker, ["elsewhere"], ledger="not configured")
    hold(broker, ["other's"], ledger=other.uuid)
    hold(broker, ["without"])
    database.commit("there")
    database.path.rename(tmp_path / "away.db")
    broker.advance(seconds=LATE_S)
    known = ledgers(database, other)
    with Producer(broker.address, GROUP, checker=lambda _: Resolution.UNKNOWN) as producer:
        producer.send("hello", b"")
        done = settle_round(spark, [broker.broker_address], known)
        assert done.unknown == {"ledger_unnamed": 3}
        # Other ledgers, and producers without one, do not wait for it.
        assert (done.rolled_back, done.asked, done.no_ledger, done.parked) == (1, 1, 0, 0)
        asked = {one for one, row in transactions(broker).items() if row.checks_sent}
        assert asked == {"without"}
        (tmp_path / "away.db").rename(database.path)
        done = settle_round(spark, [broker.broker_address], known)
        assert (done.committed, done.rolled_back, done.unknown) == (1, 1, {})
        # Now every configured ledger has reported its UUID, and this one is not among them.
        assert (done.no_ledger, done.asked) == (1, 1)


def test_a_password_shows_nowhere(
    spark: SparkSession,
    broker: InProcessBroker,
    database: Database,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    secret = "open-sesame"
    hold(broker, ["a"], ledger=database.uuid)
    hold(broker, ["b"], ledger="elsewhere")
    broker.advance(seconds=LATE_S)
    urls = [
        f"{database.url}?password={secret}",
        f"postgresql://shop:{secret}@127.0.0.1:1/orders",
        f"postgresql://shop:{secret}@x@127.0.0.1/orders",
    ]
    with caplog.at_level(logging.DEBUG, logger="escrowmq"):
        done = settle(spark, broker, *urls)
    assert done.rolled_back == 1
    shown = [str(vars(line)) for line in caplog.records] + [str(done), *capfd.readouterr()]
    assert any("ledger_silent" in line for line in shown)
    assert secret not in " ".join(shown)


def test_a_broker_that_is_away_is_named_and_the_others_are_settled(
    spark: SparkSession, broker: InProcessBroker, database: Database
) -> None:
    hold(broker, ["a"], ledger=database.uuid)
    broker.advance(seconds=LATE_S)
    done = settle_round(spark, ["127.0.0.1:1", broker.broker_address], ledgers(database))
    assert (done.brokers, done.away, done.rolled_back) == (1, ("127.0.0.1:1",), 1)


@contextmanager
def through_a_wire(address: str, connections_max: int) -> Iterator[str]:
    """Yield an address that forwards only its first few connections to another address."""
    server = socket.create_server(("127.0.0.1", 0))
    opened: list[socket.socket] = []

    def relay(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def take() -> None:
        host, _, port = address.rpartition(":")
        with suppress(OSError):
            for _ in range(connections_max):
                near, _ = server.accept()
                far = socket.create_connection((host, int(port)))
                opened.extend((near, far))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=relay, args=pair, daemon=True).start()
        server.close()

    threading.Thread(target=take, daemon=True).start()
    with closing(server):
        yield f"127.0.0.1:{server.getsockname()[1]}"
    for one in opened:
        one.close()


@pytest.mark.parametrize("connections", [1, 3])
def test_a_broker_that_goes_away_in_the_middle_is_left_out(
    spark: SparkSession, broker: InProcessBroker, database: Database, connections: int
) -> None:
    """It fails after the driver has contacted it, or after its rows were planned."""
    with (
        InProcessBroker(name="other") as other,
        through_a_wire(other.broker_address, connections) as address,
    ):
        for one in (broker, other):
            hold(one, ["a"], ledger=database.uuid)
            one.advance(seconds=LATE_S)
        done = settle_round(spark, [address, broker.broker_address], ledgers(database))
        assert (done.brokers, done.away, done.rolled_back) == (1, (address,), 1)
        assert (states(broker), states(other)) == ({"a": ROLLED_BACK}, {"a": PREPARED})


def test_a_broker_that_goes_away_before_the_verdicts_is_named(
    spark: SparkSession, broker: InProcessBroker, database: Database
) -> None:
    hold(broker, ["a"], ledger=database.uuid)
    broker.advance(seconds=LATE_S)
    with through_a_wire(broker.broker_address, 4) as address:
        done = settle_round(spark, [address], ledgers(database))
    assert (done.away, done.unknown) == ((address,), {"broker_unreachable": 1})
    assert states(broker) == {"a": PREPARED}
    assert settle(spark, broker, database).rolled_back == 1


def attempt(run: str, opened_at: int) -> str:
    query = SinkRun(app_id="app", query_id=str(UUID(int=1)), run=run, opened_at=opened_at)
    return SinkAttempt(run=query, batch=1, partition=0, attempt="0" * 32).transaction_id


def test_a_broker_that_goes_away_before_the_evidence_keeps_its_attempts(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    given_up, alive = attempt("a" * 8, 1_000), attempt("b" * 8, 2_000)
    hold(broker, [given_up, alive], group="%SINK%app")
    with (
        InProcessBroker(name="other") as other,
        through_a_wire(other.broker_address, 4) as address,
    ):
        hold(other, [given_up, alive], group="%SINK%app")
        done = settle_round(spark, [address, broker.broker_address], ledgers())
        assert (done.away, done.attempts, done.rolled_back) == ((address,), 4, 1)
        assert states(broker) == {given_up: ROLLED_BACK, alive: PREPARED}
        assert states(other) == {given_up: PREPARED, alive: PREPARED}


def test_attempts_of_a_sink_are_rolled_back_by_evidence_alone(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    """They have no producer and no time rule, and they are never parked."""
    given_up, alive = attempt("a" * 8, 1_000), attempt("b" * 8, 2_000)
    hold(broker, [given_up, alive], group="%SINK%app")
    broker.advance(seconds=86_399)
    done = settle(spark, broker)
    assert (done.seen, done.attempts, done.rolled_back) == (2, 2, 1)
    assert (done.parked, done.asked, done.no_producer, done.waiting) == (0, 0, 0, 0)
    assert states(broker) == {given_up: ROLLED_BACK, alive: PREPARED}
    broker.advance(seconds=1)
    assert settle(spark, broker).rolled_back == 1
