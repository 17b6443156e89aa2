"""The databases themselves report which ledger is where, within a short time."""

from __future__ import annotations

import logging
import pickle
import shutil
import time
from pathlib import Path

import pytest

from escrowmq.look_up import ledgers as ledgers_module
from escrowmq.look_up.ledger_config import LedgerConfig
from escrowmq.look_up.ledgers import KnownLedgers, Ledgers
from tests.ledger.shops import Shop, eventually, sqlite_shop
from tests.unit.logged import event_of


def configured(**urls: str) -> Ledgers:
    return Ledgers({name: LedgerConfig(url=url) for name, url in urls.items()})


def test_each_database_says_which_ledger_it_has(shop: Shop, tmp_path: Path) -> None:
    other = sqlite_shop(tmp_path, "other.db")
    uuids = (shop.ledger().uuid(), other.ledger().uuid())
    known = configured(shop=shop.url, other=other.url).known()
    assert known == KnownLedgers(urls=dict(zip(uuids, (shop.url, other.url), strict=True)))
    assert known.uuids == sorted(uuids)


def test_a_ledger_that_falls_silent_is_remembered(file_shop: Shop) -> None:
    """Its transactions wait for it; producers are not asked about them, and no check is counted."""
    ledgers = configured(shop=file_shop.url)
    uuid = file_shop.ledger().uuid()
    assert ledgers.known().urls == {uuid: file_shop.url}
    path = Path(file_shop.path)
    path.rename(path.with_suffix(".away"))
    known = ledgers.known()
    assert (known.urls, known.silent, known.uuids) == ({}, {uuid: "ledger_unreachable"}, [uuid])
    path.with_suffix(".away").rename(path)
    assert ledgers.known().urls == {uuid: file_shop.url}


def test_while_a_database_has_not_named_its_ledger_every_other_ledger_waits(
    file_shop: Shop, tmp_path: Path
) -> None:
    down = tmp_path / "down.db"
    known = configured(shop=file_shop.url, down=f"sqlite:///{down}").known()
    assert known.unnamed == {"down": "ledger_unreachable"}
    assert known.fault_of(file_shop.ledger().uuid()) is None
    assert known.fault_of("any other") == "ledger_unnamed"


def test_a_ledger_that_was_exchanged_is_another_one(file_shop: Shop) -> None:
    ledgers = configured(shop=file_shop.url)
    ledgers.known()
    file_shop.run("UPDATE escrowmq_ledger_id SET ledger_uuid = 'other'")
    assert ledgers.known().urls == {"other": file_shop.url}


def test_a_copy_and_its_original_are_both_left_alone(file_shop: Shop, tmp_path: Path) -> None:
    """A fence in the copy would contradict the original."""
    copy = tmp_path / "copy.db"
    shutil.copy(file_shop.path, copy)
    known = configured(shop=file_shop.url, copy=f"sqlite:///{copy}").known()
    assert (known.urls, known.silent) == ({}, {file_shop.ledger().uuid(): "ledger_twice"})


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("missing", "ledger_unreachable"),
        ("empty", "ledger_missing"),
        ("no database", "database_failed"),
    ],
)
def test_a_database_without_a_ledger_is_unnamed(tmp_path: Path, kind: str, fault: str) -> None:
    path = tmp_path / "shop.db"
    if kind != "missing":
        path.write_text("not a database" * 100 if kind == "no database" else "")
    assert configured(shop=f"sqlite:///{path}").known() == KnownLedgers(unnamed={"shop": fault})
    assert path.exists() == (kind != "missing")


def test_a_server_that_refuses_us_is_unnamed(postgres_shop: Shop) -> None:
    postgres_shop.run("DROP ROLE IF EXISTS nobody")
    postgres_shop.run("CREATE ROLE nobody NOLOGIN")
    url = postgres_shop.url.replace("//postgres:@", "//nobody:secret@")
    known = configured(shop=url).known()
    assert known == KnownLedgers(unnamed={"shop": "ledger_unreachable"})


def test_a_silent_database_delays_no_other(
    file_shop: Shop, deaf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers_module, "WAIT_S", 0.2)
    ledgers = configured(shop=file_shop.url, deaf=f"postgresql://shop:secret@{deaf}/orders")
    began_s = time.monotonic()
    for _ in range(2):
        assert ledgers.known().urls == {file_shop.ledger().uuid(): file_shop.url}
    assert time.monotonic() - began_s < 2


def test_a_new_ledger_is_logged_once_and_without_its_password(
    file_shop: Shop, deaf: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ledgers_module, "WAIT_S", 0.2)
    url = f"postgresql://shop:open-sesame@{deaf}/orders?sslpassword=open-sesame"
    with caplog.at_level(logging.INFO, logger="escrowmq"):
        ledgers = configured(shop=file_shop.url, deaf=url)
        known, *_ = [ledgers.known() for _ in range(3)]
    said = [(event_of(line), vars(line)["ledger"]) for line in caplog.records]
    assert sorted(said) == [("ledger_found", "shop"), ("ledger_silent", "deaf")]
    assert "sesame" not in " ".join(str(vars(line)) for line in caplog.records)
    assert "sqlite" not in repr(known)
    assert pickle.loads(pickle.dumps(known)) == known


def test_a_database_is_asked_again_when_it_has_answered(file_shop: Shop) -> None:
    ledgers = configured(shop=file_shop.url)
    file_shop.run("ALTER TABLE escrowmq_ledger_id RENAME TO gone")
    assert ledgers.known() == KnownLedgers(unnamed={"shop": "ledger_missing"})
    file_shop.run("ALTER TABLE gone RENAME TO escrowmq_ledger_id")
    eventually(lambda: bool(ledgers.known().urls))
