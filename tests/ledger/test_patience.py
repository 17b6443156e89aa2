"""A database that is locked, slow or silent blocks no caller for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.client.database.databases import opener_of
from escrowmq.client.ledger import checks
from escrowmq.client.ledger.table import SqlLedger
from tests.ledger.shops import (
    COMMITTED,
    GROUP,
    NOW_MS,
    ROLLED_BACK,
    Shop,
    begin,
    driver_hand,
    new_id,
    overdue,
    unknown,
)

if TYPE_CHECKING:
    import pytest


def test_a_lock_on_one_row_leaves_only_that_one_unknown(postgres_shop: Shop) -> None:
    keys = [new_id() for _ in range(50)]
    locked = keys[17]
    with driver_hand(postgres_shop) as hand:
        transaction = begin(postgres_shop, hand.db, locked)
        transaction.insert_row(NOW_MS)
        found = postgres_shop.settle(*map(overdue, keys))
        assert found.pop(locked) == unknown("locked")
        assert set(found.values()) == {ROLLED_BACK}
        transaction.commit()
    assert postgres_shop.settle(overdue(locked)) == {locked: COMMITTED}


def test_a_row_locked_for_long_does_not_delay_the_others(
    postgres_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "CHUNK_ROWS_MAX", 16)
    monkeypatch.setattr(checks, "LOCK_WAITS_MAX", 3)
    keys = [new_id() for _ in range(64)]
    with driver_hand(postgres_shop) as hand:
        for key in keys[:16:4]:
            hand.execute(f"INSERT INTO escrowmq_ledger VALUES ('{key}', '{GROUP}', 'committed', 1)")
        found = postgres_shop.settle(*map(overdue, keys))
    assert {found[key] for key in keys[16:]} == {ROLLED_BACK}
    assert {found[key] for key in keys[:16:4]} == {unknown("locked")}


def test_many_locks_do_not_hold_up_a_round_for_long(
    postgres_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "LOCK_WAITS_MAX", 3)
    keys = [new_id() for _ in range(20)]
    with driver_hand(postgres_shop) as hand:
        for key in keys:
            hand.execute(f"INSERT INTO escrowmq_ledger VALUES ('{key}', '{GROUP}', 'committed', 1)")
        found = postgres_shop.settle(*map(overdue, keys))
    assert set(found.values()) == {unknown("locked")}


def test_a_locked_table_is_unknown(postgres_shop: Shop) -> None:
    key = new_id()
    uuid = postgres_shop.ledger().uuid()
    with driver_hand(postgres_shop) as hand:
        hand.execute("LOCK TABLE escrowmq_ledger IN ACCESS EXCLUSIVE MODE")
        ledger = postgres_shop.ledger()
        found = ledger.resolve([overdue(key)], ledger_uuid=uuid, now_ms=NOW_MS)
    assert found == {key: unknown("locked")}


def test_a_slow_database_is_unknown_before_long(
    slow_url: str, postgres_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("escrowmq.client.database.databases.STATEMENT_MS_MAX", 1)
    uuid = postgres_shop.ledger().uuid()
    found = SqlLedger(slow_url).resolve([overdue("a")], ledger_uuid=uuid, now_ms=NOW_MS)
    assert found == {"a": unknown("too_slow")}


def test_a_database_that_does_not_answer_is_cut_off(slow_url: str, postgres_shop: Shop) -> None:
    """Its own timeouts may never fire if the server process is stopped or the network is gone."""
    uuid = postgres_shop.ledger().uuid()
    inquiry = checks.Inquiry(opener_of(slow_url), uuid, seconds_max=0.2)
    assert inquiry.resolve(["a"], [GROUP], {"a"}) == {"a": unknown("out_of_time")}
    # The inquiry has failed, so later calls do not wait for it.
    assert inquiry.resolve(["b"], [GROUP], {"b"}) == {"b": unknown("out_of_time")}
    assert postgres_shop.outcomes() == {}


def test_a_file_that_takes_for_ever_is_cut_off(file_shop: Shop) -> None:
    file_shop.run("DROP TABLE escrowmq_ledger")
    file_shop.run(
        "CREATE VIEW escrowmq_ledger AS WITH RECURSIVE count(n) AS"
        " (SELECT 1 UNION ALL SELECT n + 1 FROM count)"
        " SELECT n AS transaction_id, 'x' AS producer_group, 'committed' AS outcome FROM count"
    )
    uuid = file_shop.ledger().uuid()
    for database in (file_shop.url, file_shop.engine()):
        inquiry = checks.Inquiry(opener_of(database), uuid, seconds_max=0.2)
        assert inquiry.look_up(["a"], [GROUP]) == {"a": unknown("out_of_time")}


def test_an_inquiry_ends_in_time_between_two_chunks(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = shop.ledger().uuid()
    inquiry = checks.Inquiry(opener_of(shop.url), uuid)
    monkeypatch.setattr(inquiry, "_until", 0.0)
    assert inquiry.look_up(["a"], [GROUP]) == {"a": unknown("out_of_time")}
