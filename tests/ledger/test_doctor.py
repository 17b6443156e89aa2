"""The doctor recognizes weak settings of PostgreSQL."""

from __future__ import annotations

import pytest

from escrowmq.cli.doctor import ledgers
from escrowmq.cli.doctor.findings import Severity
from tests.ledger.shops import Shop


def url_with(shop: Shop, options: str) -> str:
    """Append options to a URL, which may have some already."""
    return f"{shop.url}{'&' if '?' in shop.url else '?'}{options}"


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+asyncpg"])
def test_settings_that_can_lose_a_commit_are_warnings(postgres_shop: Shop, scheme: str) -> None:
    # The tests' own server has such a setting.
    options = "options=-c%20synchronous_commit%3Doff"
    url = url_with(postgres_shop, options).replace("postgresql", scheme, 1)
    found = [
        (finding.level, finding.found)
        for finding in ledgers.findings("shop", url)
        if finding.level is not Severity.OK
    ]
    weak = ("fsync is off", "synchronous_commit is off")
    assert found == [(Severity.WARNING, setting) for setting in weak]


def test_a_database_that_cannot_be_written_is_a_problem(postgres_shop: Shop) -> None:
    options = "options=-c%20default_transaction_read_only%3Don"
    found = {
        finding.check: finding.level
        for finding in ledgers.findings("shop", url_with(postgres_shop, options))
    }
    assert found["ledger shop primary"] is Severity.PROBLEM
    assert found["ledger shop"] is Severity.OK
