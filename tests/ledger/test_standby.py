"""A standby lags behind its primary: a row that it lacks may exist on the primary."""

from __future__ import annotations

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
