"""Ending what damage has made incomplete; test_repair_transactions.py has the whole story."""

from __future__ import annotations

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.transaction.commands import Abandon, Decision
from escrowmq.transaction.states import Resolution, State
from tests.unit.store.shop import Shop


def abandon(shop: Shop, row: int) -> Decision:
    decision = shop.store.execute(Abandon(half_offset=row, by="repair"), shop.now_ms)
    if decision.refused is not None:
        raise decision.refused
    return decision


def test_an_undecided_transaction_is_rolled_back_as_a_whole() -> None:
    shop = Shop()
    head = shop.prepare(2, requests=2)
    abandon(shop, head + 3)
    assert {shop.store.row(row).state for row in range(head, head + 4)} == {State.ROLLED_BACK}


def test_a_parked_transaction_is_rolled_back_too() -> None:
    shop = Shop()
    head = shop.prepare()
    shop.park(head)
    abandon(shop, head)
    assert shop.store.row(head).state is State.ROLLED_BACK


@pytest.mark.parametrize("resolution", [Resolution.COMMIT, Resolution.ROLLBACK])
def test_a_decision_stands(resolution: Resolution) -> None:
    shop = Shop()
    head = shop.prepare()
    shop.end(head, resolution)
    assert abandon(shop, head) == Decision()


def test_what_is_unknown_is_refused() -> None:
    with pytest.raises(RequestRefused, match="no_such_half_message"):
        abandon(Shop(), 5)
