"""A ledger of another version: refused by name, migrated without loss, shared with an old SDK."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from escrowmq import Producer
from escrowmq.cli.doctor import ledgers
from escrowmq.cli.doctor.findings import Severity
from escrowmq.cli.main import main
from escrowmq.client.ledger import table
from escrowmq.client.ledger.marks import Marks
from escrowmq.client.ledger.table import Question, SqlLedger
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.look_up.ledger_config import LedgerConfig
from escrowmq.look_up.ledgers import Ledgers
from escrowmq.model.errors import RequestRefused
from escrowmq.model.lineage import EPOCHS_MAX, Epoch, Sight, new_lineage
from escrowmq.protocol.native.headers import TransactionHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.recovery.recovery import open_store
from escrowmq.testing import InProcessBroker, ManualClock
from escrowmq.transaction.commands import Prepare
from escrowmq.transaction.policy import CheckPolicy
from tests.golden.make_v1 import EXPECTED, STORE
from tests.ledger.shops import COMMITTED, GROUP, NOW_MS, Shop, overdue, refused
from tests.unit.store.helpers import HOST, message

UUID = "0123456789abcdef0123456789abcdef"
PAID = "order-paid"
HOUR_S = 3_600

#: The tables as release 0.1.0 made them, with its types.
VERSION_1 = (
    (
        "CREATE TABLE escrowmq_ledger (transaction_id {text} NOT NULL PRIMARY KEY,"
        " producer_group {text} NOT NULL, outcome {text} NOT NULL, written_at_ms bigint NOT NULL)"
    ),
    (
        "CREATE TABLE escrowmq_ledger_id ("
        "singleton integer NOT NULL PRIMARY KEY CHECK (singleton = 1), ledger_uuid {text} NOT NULL)"
    ),
    f"INSERT INTO escrowmq_ledger_id (singleton, ledger_uuid) VALUES (1, '{UUID}')",
    (
        "CREATE TABLE escrowmq_consumed (consumer_group {text} NOT NULL, topic {text} NOT NULL,"
        " message_id {text} NOT NULL, body_checksum bigint NOT NULL,"
        " consumed_at_ms bigint NOT NULL, PRIMARY KEY (consumer_group, topic, message_id))"
    ),
)
#: The INSERT of an SDK of release 0.1.0.
OLD_INSERT = (
    "INSERT INTO escrowmq_ledger (transaction_id, producer_group, outcome, written_at_ms)"
    " SELECT CAST('{id}' AS text), CAST('orders' AS text), 'committed', CAST('1' AS bigint)"
    f" FROM escrowmq_ledger_id WHERE ledger_uuid = CAST('{UUID}' AS text)"
)
#: The DELETE of that SDK's janitor.
OLD_DELETE = {
    "sqlite": "DELETE FROM escrowmq_ledger WHERE outcome = 'committed' AND transaction_id"
    " IN (SELECT value FROM json_each('[\"{id}\"]'))",
    "postgresql": "DELETE FROM escrowmq_ledger WHERE outcome = 'committed' AND transaction_id"
    " = ANY(string_to_array(CAST('{id}' AS text), chr(10)))",
}
Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as left:
            main(["ledger", *words])
        told = capsys.readouterr()
        assert left.value.code == code, told
        return told.err if code else told.out

    return run


@pytest.fixture(params=["sqlite", "postgresql"])
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """Yield a database with orders, and no ledger."""
    if request.param == "sqlite":
        shop = Shop(kind="sqlite", url=f"sqlite:///{tmp_path / 'old.db'}")
    else:
        url: str = request.getfixturevalue("postgres").get_uri()
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("DROP DATABASE IF EXISTS old_ledger")
            admin.execute("CREATE DATABASE old_ledger")
        shop = Shop(kind="postgresql", url=url.replace("/postgres?", "/old_ledger?"))
    shop.run("CREATE TABLE orders (number integer PRIMARY KEY)")
    yield shop
    shop.close()


@pytest.fixture
def old(bare: Shop) -> Shop:
    """Return a ledger that release 0.1.0 made, with a row of each outcome."""
    words = "text" if bare.kind == "sqlite" else "varchar(255)"
    for statement in VERSION_1:
        bare.run(statement.format(text=words))
    bare.run(OLD_INSERT.format(id="paid"))
    bare.run("INSERT INTO escrowmq_ledger VALUES ('lost', 'orders', 'rolled_back', 1)")
    bare.run("INSERT INTO escrowmq_consumed VALUES ('g', 't', 'm', 1, 1)")
    return bare


def fault_in_rounds(shop: Shop) -> str:
    """Return why a settle round skips this ledger; empty if it does not."""
    known = Ledgers({"shop": LedgerConfig(url=shop.url)}).known()
    assert known.uuids == [UUID], "its transactions wait for it"
    return known.silent.get(UUID, "")


def version_finding(shop: Shop) -> tuple[Severity, str]:
    found = {one.check: one for one in ledgers.findings("shop", shop.url)}
    return found["ledger shop version"].level, found["ledger shop version"].found


# Version 1.


def test_a_ledger_of_version_1_is_refused_until_it_is_migrated(old: Shop, run: Run) -> None:
    with refused("ledger_outdated"):
        SqlLedger(old.url).uuid()
    assert fault_in_rounds(old) == "ledger_outdated"
    level, said = version_finding(old)
    assert level is Severity.PROBLEM
    assert "escrowmq ledger migrate" in said
    told = json.loads(run("migrate", old.url, "-o", "json"))
    assert told == {"uuid": UUID, "version_before": 1, "version": 2}
    assert fault_in_rounds(old) == ""
    assert version_finding(old) == (Severity.OK, "2")


def test_a_migration_keeps_uuid_and_rows_and_the_ledger_works(old: Shop, run: Run) -> None:
    run("migrate", old.url)
    ledger = SqlLedger(old.url)
    assert ledger.uuid() == UUID
    assert old.outcomes() == {"paid": "committed", "lost": "rolled_back"}
    assert old.run("SELECT message_id FROM escrowmq_consumed") == [("m",)]
    assert old.run("SELECT version, is_swept_unmarked FROM escrowmq_ledger_version") == [(2, 1)]
    paid = Question("paid", GROUP, NOW_MS)
    assert ledger.look_up([paid], ledger_uuid=UUID) == {"paid": COMMITTED}
    with InProcessBroker(ledgers=[ledger]) as broker:
        with Producer(broker.address, GROUP, ledger=ledger) as producer:
            assert pay(old, producer, 1) in old.outcomes()
            assert producer.clean_ledger() == 1
        assert [one.body for one in broker.messages(PAID)] == [b"1"]
    told = json.loads(run("show", old.url, "-o", "json"))
    assert told["rows"] == {"committed": 1, "rolled_back": 1}
    assert told["is_swept_unmarked"] is True
    assert len(told["marks"]) == 1


def test_a_second_migration_changes_nothing(old: Shop, run: Run) -> None:
    first, second = (json.loads(run("migrate", old.url, "-o", "json")) for _ in range(2))
    assert second == {**first, "version_before": 2}
    assert old.run("SELECT is_swept_unmarked FROM escrowmq_ledger_version") == [(1,)]


def test_the_printed_sql_migrates_as_the_command_does(old: Shop, run: Run) -> None:
    for statement in run("sql", old.kind).split(";\n"):
        if statement:
            old.run(statement)
    assert SqlLedger(old.url).uuid() == UUID
    assert old.run("SELECT version, is_swept_unmarked FROM escrowmq_ledger_version") == [(2, 1)]


def test_a_migration_that_stopped_half_way_is_finished(old: Shop, run: Run) -> None:
    statements = table.ddl(old.kind).split(";\n")
    for statement in statements[:3]:
        old.run(statement)
    with refused("ledger_outdated"):
        SqlLedger(old.url).uuid()
    run("migrate", old.url)
    assert old.run("SELECT version, is_swept_unmarked FROM escrowmq_ledger_version") == [(2, 1)]
    assert SqlLedger(old.url).uuid() == UUID


async def test_a_ledger_is_migrated_through_an_async_engine(old: Shop) -> None:
    engine = old.async_engine()
    ledger = SqlLedger(engine)
    with refused("ledger_outdated"):
        await ledger.uuid_async()
    assert await ledger.migrate_async() == (UUID, 1, 2)
    assert await ledger.uuid_async() == UUID
    await engine.dispose()


# No ledger.


def test_a_migration_makes_a_ledger_only_when_it_is_told_to(bare: Shop, run: Run) -> None:
    assert "--create" in run("migrate", bare.url, code=2)
    with refused("ledger_missing"):
        SqlLedger(bare.url).uuid()
    told = json.loads(run("migrate", bare.url, "--create", "-o", "json"))
    assert told == {"uuid": SqlLedger(bare.url).uuid(), "version_before": None, "version": 2}
    assert bare.run("SELECT is_swept_unmarked FROM escrowmq_ledger_version") == [(0,)]


def test_a_ledger_whose_rows_are_lost_is_not_made_anew(old: Shop, run: Run) -> None:
    """Under another UUID, undecided transactions would wait forever."""
    old.run("DROP TABLE escrowmq_ledger")
    assert "ledger_missing" in run("migrate", old.url, code=2)
    assert old.run("SELECT ledger_uuid FROM escrowmq_ledger_id") == [(UUID,)]


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path, run: Run) -> None:
    url = f"sqlite:///{tmp_path / 'gone.db'}"
    for command in ("migrate", "show"):
        assert "ledger_unreachable" in run(command, url, code=3)
    assert list(tmp_path.iterdir()) == []
    run("migrate", url, "--create")
    assert SqlLedger(url).uuid() in run("show", url)


def test_a_ledger_can_be_named_by_the_config(tmp_path: Path, run: Run) -> None:
    table.create(f"sqlite:///{tmp_path / 'shop.db'}")
    setting = f"ledger.shop.url=sqlite:///{tmp_path / 'shop.db'}"
    assert "version_before" in run("migrate", "shop", "--set", setting)
    assert "bad_option" in run("migrate", "stranger", "--set", setting, code=2)


# A newer version.


def test_a_ledger_of_a_newer_version_is_refused_before_anything_is_written(
    old: Shop, run: Run
) -> None:
    run("migrate", old.url)
    ledger = SqlLedger(old.url)
    ledger.uuid()
    old.run("UPDATE escrowmq_ledger_version SET version = 3")
    old.run("DROP TABLE escrowmq_ledger_swept")
    for call in (SqlLedger(old.url).uuid, SqlLedger(old.url).create, SqlLedger(old.url).migrate):
        with refused("ledger_version_unknown"):
            call()
    for command in ("migrate", "show"):
        assert "ledger_version_unknown" in run(command, old.url, code=2)
    assert "ledger_version_unknown" in run("migrate", old.url, "--create", code=2)
    assert fault_in_rounds(old) == "ledger_version_unknown"
    assert version_finding(old)[0] is Severity.PROBLEM
    # A program that opened the ledger earlier fences nothing in it.
    answer = ledger.resolve([overdue("absent")], ledger_uuid=UUID, now_ms=NOW_MS)["absent"]
    assert answer.reason == "ledger_version_unknown"
    with pytest.raises((sqlite3.OperationalError, psycopg.errors.UndefinedTable)):
        old.run("SELECT 1 FROM escrowmq_ledger_swept")


# An SDK of release 0.1.0 beside a new one.


def test_an_old_and_a_new_sdk_share_a_ledger(old: Shop, tmp_path: Path, run: Run) -> None:
    """The old SDK still writes rows; its sweeps are refused, and the new SDK sweeps for both."""
    run("migrate", old.url)
    ledger = SqlLedger(old.url)
    data = tmp_path / "data"
    with (
        InProcessBroker(data=data, ledgers=[ledger]) as broker,
        Producer(broker.address, GROUP, ledger=ledger) as producer,
        NativeCalls(broker.broker_address) as calls,
    ):
        mine = pay(old, producer, 1)
        # The old SDK's half message is held; the SDK committed its row, and then died.
        its = held(producer, "from-old-sdk")
        old.run(OLD_INSERT.format(id=its))
        broker.advance(seconds=HOUR_S)
        assert len(broker.run_checks().committed) == 1
        assert sorted(one.body for one in broker.messages(PAID)) == [b"1", b"7"]
        # Its janitor asks with this request, and deletes nothing when the broker refuses.
        for transaction_id in (mine, its):
            question = TransactionHeader(transaction_id=transaction_id, limit=1)
            with pytest.raises(RequestRefused) as answered:
                calls.call(NativeCode.LIFE_LINE, question)
            assert answered.value.code == "client_outdated"
        assert {mine, its} <= old.outcomes().keys()
        assert producer.clean_ledger() == 2
        assert old.outcomes().keys() == {"paid", "lost"}


def test_rows_that_an_old_sdk_swept_at_an_old_broker_are_never_fenced(
    old: Shop, tmp_path: Path, run: Run
) -> None:
    """A store of format 1 was copied; later its transaction was decided, and its row swept."""
    data, now_ms = tmp_path / "data", ManualClock().now_ms()
    clock = ManualClock(now_ms)
    swept, young = "swept-by-old-sdk", "held-by-new-broker"
    hold_at_old_broker(data, swept, now_ms)
    old.run(OLD_INSERT.format(id=swept))
    old.run(OLD_DELETE[old.kind].format(id=swept))
    run("migrate", old.url)
    ledger = SqlLedger(old.url)
    with InProcessBroker(data=data, ledgers=[ledger], clock=clock) as broker:
        with Producer(broker.address, GROUP, ledger=ledger) as producer:
            held(producer, young)
        broker.advance(seconds=HOUR_S)
        done = broker.run_checks()
        assert [one for one in old.outcomes() if one in (swept, young)] == [young]
        assert (len(done.parked), len(done.rolled_back)) == (1, 1)
        assert broker.messages(PAID) == []
        assert parked_because(broker, swept) == "maybe_swept"


def test_a_new_ledger_at_an_old_broker_is_no_proof_that_nothing_was_swept(bare: Shop) -> None:
    """An old SDK could sweep it, too, as long as the broker had no epochs."""
    ledger = SqlLedger(bare.url)
    ledger.create()
    upgraded = new_lineage("store").with_epoch(Epoch("first", 4_096, 7))
    marks = Marks([], is_swept_unmarked=False)
    assert marks.limits(Sight(upgraded, 9_000, 9)).swept_below == 7


def test_a_lineage_that_dropped_its_first_epoch_is_read_carefully() -> None:
    lineage = new_lineage("store")
    for number in range(EPOCHS_MAX + 9):
        lineage = lineage.with_epoch(Epoch(f"e{number}", 100 * (number + 1), number + 1))
    sight = Sight(lineage, 100_000, 1_000)
    assert lineage.first_epoch is None
    oldest = lineage.epochs[0].half_offset
    assert Marks([], is_swept_unmarked=True).limits(sight).swept_below == oldest
    assert Marks([], is_swept_unmarked=False).limits(sight).swept_below == 0


def test_a_data_directory_of_the_release_before_is_served_with_its_ledger(
    old: Shop, tmp_path: Path, run: Run
) -> None:
    """Release 0.1.0 made store and ledger; a producer of this release continues with both."""
    shutil.copytree(STORE, tmp_path / "data" / "store")
    expected = json.loads(EXPECTED.read_text())
    run("migrate", old.url)
    ledger = SqlLedger(old.url)
    clock = ManualClock(expected["last_at_ms"])
    with InProcessBroker(data=tmp_path / "data", ledgers=[ledger], clock=clock) as broker:
        before = broker.undecided()
        prepared = {row for row, facts in expected["rows"].items() if facts["state"] == "prepared"}
        assert {str(one.half_offset) for one in before} <= prepared
        assert before, "what was undecided still is"
        with Producer(broker.address, GROUP, ledger=ledger) as producer:
            pay(old, producer, 1)
            assert producer.clean_ledger() == 1
        assert [one.body for one in broker.messages(PAID)] == [b"1"]
        assert broker.undecided() == before


def pay(shop: Shop, producer: Producer, number: int) -> str:
    with shop.engine().connect() as connection, producer.transaction(connection) as tx:
        connection.execute(text(f"INSERT INTO orders VALUES ({number})"))
        tx.send(PAID, str(number).encode())
    return tx.transaction_id


def held(producer: Producer, transaction_id: str) -> str:
    """Hold a half message whose sender sends nothing more."""
    from escrowmq.client.messages.messages import Message
    from escrowmq.client.network.background import background

    producing = background().run(producer._core.started())
    background().run(producing.hold(transaction_id, [Message(topic=PAID, body=b"7")], ledger=UUID))
    return transaction_id


def hold_at_old_broker(data: Path, transaction_id: str, now_ms: int) -> None:
    """Write a half message into a store to which no start has appended an epoch."""
    disk = OsDisk(data / "store")
    store, _ = open_store(disk, StoreConfig(), CheckPolicy(), HOST)
    command = Prepare(
        group=GROUP,
        transaction_id=transaction_id,
        messages=(message(topic=PAID),),
        ledger=UUID,
        allowed_ms=1_000,
    )
    with closing(store):
        assert store.execute(command, now_ms).refused is None
        store.sync()


def parked_because(broker: InProcessBroker, transaction_id: str) -> str:
    with NativeCalls(broker.broker_address) as calls:
        line = calls.call(
            NativeCode.LIFE_LINE,
            TransactionHeader(transaction_id=transaction_id, leaves_marks=True),
        )
    (reason,) = (str(row.detail) for row in line.rows if row.event == "parked")
    return reason
