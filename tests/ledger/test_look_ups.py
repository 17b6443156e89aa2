"""Lookups from a task: without an answer nothing is decided, and other ledgers do not wait."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from escrowmq.client.database.connections import SqliteConnection
from escrowmq.client.database.ledger_sql import SQLITE
from escrowmq.look_up import inquiries
from escrowmq.look_up.ledgers import KnownLedgers
from escrowmq.pipeline.settle import look_ups
from escrowmq.pipeline.settle.look_ups import LookUps
from tests.ledger.settle_rows import BROKER, batch
from tests.ledger.shops import GROUP, NOW_MS, Shop, new_id, sqlite_shop


@pytest.fixture(autouse=True)
def rested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiries, "_resting", {})


def add(shop: Shop, outcome: str = "committed", group: str = GROUP) -> str:
    key = new_id()
    shop.run(f"INSERT INTO escrowmq_ledger VALUES ('{key}', '{group}', '{outcome}', 1)")
    return key


def known(*shops: Shop) -> KnownLedgers:
    return KnownLedgers(urls={shop.ledger().uuid(): shop.url for shop in shops})


def test_rows_decide_and_what_is_absent_past_its_deadline_is_fenced(shop: Shop) -> None:
    uuid = shop.ledger().uuid()
    ids = [add(shop), add(shop, "rolled_back"), new_id()]
    with LookUps(known(shop)) as asked:
        found = asked.settle(uuid, batch(ids, uuid))
        again = asked.settle(uuid, batch([new_id()], uuid, allowed_ms=60_000))
    assert found.verdicts == ["commit", "rollback", "rollback"]
    assert (found.reasons, found.unknown) == ([None] * 3, {})
    assert (again.verdicts, again.unknown) == ([None], {(BROKER, "absent"): 1})
    assert shop.outcomes() == dict(
        zip(ids, ["committed", "rolled_back", "rolled_back"], strict=True)
    )


def test_thousands_are_looked_up_and_fenced_by_a_few_statements(
    file_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid, ids = file_shop.ledger().uuid(), [new_id() for _ in range(5_000)]
    ran: list[str] = []
    execute = SqliteConnection.execute

    def counted(connection: SqliteConnection, sql: str, *values: Any) -> Any:
        ran.append(sql)
        return execute(connection, sql, *values)

    monkeypatch.setattr(SqliteConnection, "execute", counted)
    with LookUps(known(file_shop)) as asked:
        found = asked.settle(uuid, batch(ids, uuid))
    assert set(found.verdicts) == {"rollback"}
    # Two chunks: each is read, fenced, and read again.
    assert [sql for sql in ran if "escrowmq_ledger " in sql] == [
        SQLITE.read,
        SQLITE.read,
        SQLITE.fence,
        SQLITE.read_locked,
        SQLITE.fence,
        SQLITE.read_locked,
    ]


def test_the_deadline_is_on_the_brokers_clock(shop: Shop) -> None:
    """It is past when the broker's clock is beyond it, not when the clock has just reached it."""
    uuid = shop.ledger().uuid()
    with LookUps(known(shop)) as asked:
        at = batch([new_id()], uuid, stored_at_ms=NOW_MS - 5, allowed_ms=5)
        assert asked.settle(uuid, at).verdicts == [None]
        past = batch([new_id()], uuid, stored_at_ms=NOW_MS - 6, allowed_ms=5)
        assert asked.settle(uuid, past).verdicts == ["rollback"]


@pytest.mark.parametrize(
    ("outcome", "group", "reason"),
    [("whatever", GROUP, "odd_row"), ("committed", "payments", "other_group")],
)
def test_an_odd_row_is_unknown_and_parked_when_its_time_is_over(
    shop: Shop, outcome: str, group: str, reason: str
) -> None:
    uuid = shop.ledger().uuid()
    key = add(shop, outcome, group)
    over = {"due_unanswered": "park", "park_reason": "past_retention"}
    with LookUps(known(shop)) as asked:
        assert asked.settle(uuid, batch([key], uuid)).unknown == {(BROKER, reason): 1}
        found = asked.settle(uuid, batch([key], uuid, **over))
    assert (found.verdicts, found.reasons) == (["park"], ["past_retention"])
    assert (found.unknown, shop.outcomes()) == ({}, {key: outcome})


def test_a_silent_ledger_is_not_asked(file_shop: Shop) -> None:
    silent = KnownLedgers(silent={"uuid": "ledger_slow"})
    with LookUps(silent) as asked:
        found = asked.settle("uuid", batch(["a", "b"], "uuid"))
    assert (found.verdicts, found.unknown) == ([None, None], {(BROKER, "ledger_slow"): 2})
    assert file_shop.outcomes() == {}


def test_another_database_is_unknown_and_never_fenced(shop: Shop, tmp_path: Path) -> None:
    other = sqlite_shop(tmp_path, "other.db").ledger().uuid()
    wrong = KnownLedgers(urls={other: shop.url})
    with LookUps(wrong) as asked:
        found = asked.settle(other, batch([new_id()], other))
    assert found.unknown == {(BROKER, "other_ledger"): 1}
    assert shop.outcomes() == {}


def test_a_table_that_is_gone_is_unknown(file_shop: Shop) -> None:
    uuid = file_shop.ledger().uuid()
    file_shop.run("DROP TABLE escrowmq_ledger")
    with LookUps(known(file_shop)) as asked:
        found = asked.settle(uuid, batch(["a"], uuid))
    assert found.unknown == {(BROKER, "ledger_missing"): 1}


def test_a_database_that_went_down_is_unknown_and_rests_for_a_while(
    file_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid, before = file_shop.ledger().uuid(), known(file_shop)
    key = add(file_shop)
    path = Path(file_shop.path)
    path.rename(path.with_suffix(".away"))
    down = {(BROKER, "ledger_unreachable"): 1}
    with LookUps(before) as asked:
        assert asked.settle(uuid, batch([key], uuid)).unknown == down
    path.with_suffix(".away").rename(path)
    # The next task of this process does not wait for it either.
    with LookUps(before) as asked:
        assert asked.settle(uuid, batch([key], uuid)).unknown == down
    later_s = time.monotonic() + inquiries.REST_S
    monkeypatch.setattr("escrowmq.look_up.inquiries.time.monotonic", lambda: later_s)
    with LookUps(before) as asked:
        assert asked.settle(uuid, batch([key], uuid)).verdicts == ["commit"]


def test_one_ledger_that_hangs_holds_up_the_others_once_and_for_a_bounded_time(
    postgres_shop: Shop, file_shop: Shop, slow_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_ups, "SECONDS_MAX", 0.3)
    slow, good = postgres_shop.ledger().uuid(), file_shop.ledger().uuid()
    ledgers = KnownLedgers(urls={slow: slow_url, good: file_shop.url})
    key = add(file_shop)
    began_s = time.monotonic()
    for _ in range(20):
        with LookUps(ledgers) as asked:
            found = asked.settle(slow, batch(["a"], slow))
            assert found.unknown == {(BROKER, "out_of_time"): 1}
            assert asked.settle(good, batch([key], good)).verdicts == ["commit"]
    assert time.monotonic() - began_s < 3
