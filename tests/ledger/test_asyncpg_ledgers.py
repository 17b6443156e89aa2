"""Ledgers that are reached through asyncpg, by engine or by URL."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from escrowmq.client.database.databases import opener_of
from escrowmq.client.ledger import checks
from escrowmq.client.ledger.janitor import Confirmed
from escrowmq.client.ledger.table import LedgerOutcome, SqlLedger
from tests.ledger.async_hands import begun, session
from tests.ledger.shops import (
    COMMITTED,
    GROUP,
    NOW_MS,
    ROLLED_BACK,
    Shop,
    new_id,
    overdue,
    refused,
    unknown,
)


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_an_engines_ledger_answers_checks_and_is_swept(
    asyncpg_shop: Shop, level: str
) -> None:
    ledger = SqlLedger(asyncpg_shop.async_engine(isolation_level=level))
    uuid = await ledger.create_async()
    assert uuid == asyncpg_shop.ledger().uuid()
    absent, late = new_id(), new_id()
    async with session(asyncpg_shop) as db:
        transaction = await begun(asyncpg_shop, db)
        await transaction.insert_row(NOW_MS)
        await transaction.commit()
    (there,) = asyncpg_shop.outcomes()
    assert await ledger.look_up_async([overdue(there), overdue(absent)], ledger_uuid=uuid) == {
        there: COMMITTED,
        absent: unknown("absent"),
    }
    assert await ledger.resolve_async(
        [overdue(there), overdue(late)], ledger_uuid=uuid, now_ms=NOW_MS
    ) == {there: COMMITTED, late: ROLLED_BACK}

    async def confirm(ids: Sequence[str]) -> Confirmed:
        return Confirmed(dict.fromkeys(ids, LedgerOutcome.COMMITTED), ())

    assert await ledger.sweep_async(confirm) == 1
    assert asyncpg_shop.outcomes() == {late: "rolled_back"}
    asyncpg_shop.run("INSERT INTO escrowmq_consumed VALUES ('g', 't', 'm', 0, 20)")
    assert await ledger.forget_consumed_async(before_ms=21) == 1


def asyncpg_url(shop: Shop) -> str:
    return shop.url.replace("postgresql://", "postgresql+asyncpg://")


async def test_a_url_that_names_asyncpg_needs_no_other_driver(
    asyncpg_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, expected = SqlLedger(asyncpg_url(asyncpg_shop)), asyncpg_shop.ledger().uuid()
    for package in ("psycopg", "sqlalchemy"):
        monkeypatch.setitem(sys.modules, package, None)

    def wait() -> None:
        uuid = ledger.create()
        assert uuid == ledger.uuid() == expected
        late = new_id()
        found = ledger.resolve([overdue(late)], ledger_uuid=uuid, now_ms=NOW_MS)
        assert found == {late: ROLLED_BACK}
        assert ledger.sweep(lambda _ids: Confirmed({}, ())) == 0
        assert ledger.forget_consumed(1) == 0

    await asyncio.to_thread(wait)
    assert await SqlLedger(asyncpg_url(asyncpg_shop)).uuid_async() == expected


def test_a_url_that_leads_nowhere_is_unreachable(tmp_path: Path) -> None:
    ledger = SqlLedger(f"postgresql+asyncpg://postgres@/postgres?host={tmp_path}")
    with refused("ledger_unreachable"):
        ledger.uuid()
    assert ledger.look_up([overdue("a")], ledger_uuid="x") == {"a": unknown("ledger_unreachable")}
    with refused("bad_ledger_url"):
        SqlLedger("postgresql+asyncpg://me:p@ss@host/db")


def test_a_database_that_does_not_answer_asyncpg_is_cut_off(
    slow_url: str, postgres_shop: Shop
) -> None:
    uuid = postgres_shop.ledger().uuid()
    opener = opener_of(slow_url.replace("postgresql://", "postgresql+asyncpg://"))
    inquiry = checks.Inquiry(opener, uuid, seconds_max=0.2)
    assert inquiry.look_up(["a"], [GROUP]) == {"a": unknown("out_of_time")}


async def test_an_engine_that_does_not_answer_is_cut_off(
    slow_url: str, asyncpg_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {**(checks.Inquiry.__init__.__kwdefaults__ or {}), "seconds_max": 0.2}
    monkeypatch.setattr(checks.Inquiry.__init__, "__kwdefaults__", given)
    uuid = asyncpg_shop.ledger().uuid()
    asyncpg_shop.url = slow_url.replace("&options=-csearch_path%3Dslow,public", "")
    engine = asyncpg_shop.async_engine(
        connect_args={"server_settings": {"search_path": "slow,public"}}
    )
    found = await SqlLedger(engine).look_up_async([overdue("a")], ledger_uuid=uuid)
    assert found == {"a": unknown("out_of_time")}
