"""A ledger without its driver names the package to install, and nothing is decided."""

from __future__ import annotations

import sys

import pytest

from escrowmq.client.database.errors import Failure, failure_of
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.look_up import inquiries
from escrowmq.look_up.ledgers import KnownLedgers
from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.settle.look_ups import LookUps
from tests.ledger.settle_rows import BROKER, batch
from tests.ledger.shops import new_id

URL = "postgresql://shop:open-sesame@127.0.0.1:1/orders"
#: SQLAlchemy imports this driver, which is not installed in the test environment.
OTHER_URL = "postgresql+psycopg2://shop:open-sesame@127.0.0.1:1/orders"


def test_the_sdk_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(RequestRefused, match=r"driver_missing: .*escrowmq\[postgres\]"):
        SqlLedger(URL).uuid()


def test_the_sdk_says_so_of_a_driver_that_sqlalchemy_imports() -> None:
    with pytest.raises(RequestRefused, match=r"driver_missing: .*postgresql:// for psycopg 3"):
        SqlLedger(OTHER_URL)


def test_an_import_that_failed_is_a_missing_driver() -> None:
    assert failure_of(ModuleNotFoundError("No module named 'asyncpg'")) is Failure.NO_DRIVER


@pytest.mark.parametrize("url", [URL, OTHER_URL])
def test_a_task_without_the_driver_fails_the_ledger_and_not_the_round(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.setattr(inquiries, "_resting", {})
    with LookUps(KnownLedgers(urls={"u": url})) as asked:
        found = asked.settle("u", batch([new_id(), new_id()], "u"))
        (ended,) = asked.ended()
    assert (found.verdicts, found.unknown) == ([None, None], {(BROKER, "driver_missing"): 2})
    assert (ended["ledger"], ended["reason"]) == ("u", "driver_missing")
    assert "psycopg" in ended["cause"]
    assert "sesame" not in ended["cause"]
    # The next task of this process does not retry at once, and reports the reason.
    with LookUps(KnownLedgers(urls={"u": url})) as asked:
        asked.settle("u", batch([new_id()], "u"))
        assert asked.ended() == [ended]
