"""The janitor deletes rows that the broker has decided for good, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from escrowmq.client.ledger.janitor import FENCE_KEPT_MS, PAGE_ROWS_MAX, Confirmed
from escrowmq.client.ledger.table import LedgerOutcome
from escrowmq.model.errors import Unavailable
from tests.ledger.shops import GROUP, Shop, new_id, refused


def add(shop: Shop, outcome: str, *, age_ms: int = 0, count: int = 1) -> list[str]:
    keys = [new_id() for _ in range(count)]
    written_at_ms = time.time_ns() // 1_000_000 - age_ms
    rows = ", ".join(f"('{key}', '{GROUP}', '{outcome}', {written_at_ms})" for key in keys)
    shop.run(f"INSERT INTO escrowmq_ledger VALUES {rows}")
    return keys


class Broker:
    """A broker with these decisions, which can become unreachable."""

    def __init__(self, decisions: Mapping[str, LedgerOutcome]) -> None:
        self.decisions = decisions
        self.asked: list[int] = []
        self.chunks_max = 1_000

    def __call__(self, ids: Sequence[str]) -> Confirmed:
        self.asked.append(len(ids))
        if len(self.asked) > self.chunks_max:
            raise Unavailable("broker_gone")
        return Confirmed({key: self.decisions[key] for key in ids if key in self.decisions}, ())


def sweep(shop: Shop, broker: Broker) -> int:
    return shop.ledger().sweep(broker)


def test_decided_rows_go_and_undecided_ones_stay(shop: Shop) -> None:
    decided, undecided = add(shop, "committed"), add(shop, "committed")
    broker = Broker(dict.fromkeys(decided, LedgerOutcome.COMMITTED))
    assert sweep(shop, broker) == 1
    assert shop.outcomes() == {undecided[0]: "committed"}


def test_a_fence_stays_for_seven_days(shop: Shop) -> None:
    young = add(shop, "rolled_back", age_ms=FENCE_KEPT_MS - 60_000)
    old = add(shop, "rolled_back", age_ms=FENCE_KEPT_MS)
    broker = Broker(dict.fromkeys(young + old, LedgerOutcome.ROLLED_BACK))
    assert sweep(shop, broker) == 1
    assert shop.outcomes() == {young[0]: "rolled_back"}
    # The janitor does not ask about rows that stay anyway.
    assert sweep(shop, broker) == 0
    assert broker.asked == [1]


def test_an_old_fence_of_an_undecided_transaction_stays(shop: Shop) -> None:
    key = add(shop, "rolled_back", age_ms=10 * FENCE_KEPT_MS)[0]
    assert sweep(shop, Broker({})) == 0
    assert shop.outcomes() == {key: "rolled_back"}


def test_a_row_of_another_program_stays(shop: Shop) -> None:
    good = add(shop, "committed")
    shop.run(f"INSERT INTO escrowmq_ledger VALUES ('x\n{good[0]}', 'odd', 'committed', 1)")
    broker = Broker({f"x\n{good[0]}": LedgerOutcome.COMMITTED})
    assert sweep(shop, broker) == 0
    assert set(shop.outcomes()) == {good[0], f"x\n{good[0]}"}


def test_evidence_of_a_contradiction_stays(shop: Shop) -> None:
    committed = add(shop, "committed", age_ms=10 * FENCE_KEPT_MS)
    fenced = add(shop, "rolled_back", age_ms=10 * FENCE_KEPT_MS)
    odd = add(shop, "odd", age_ms=10 * FENCE_KEPT_MS)
    broker = Broker(
        dict.fromkeys(committed, LedgerOutcome.ROLLED_BACK)
        | dict.fromkeys(fenced, LedgerOutcome.COMMITTED)
        | dict.fromkeys(odd, LedgerOutcome.COMMITTED)
    )
    assert sweep(shop, broker) == 0
    assert len(shop.outcomes()) == 3


def test_a_large_ledger_is_swept_in_bounded_steps(shop: Shop) -> None:
    keys = add(shop, "committed", count=3 * PAGE_ROWS_MAX + 1)
    broker = Broker(dict.fromkeys(keys, LedgerOutcome.COMMITTED))
    assert sweep(shop, broker) == len(keys)
    assert broker.asked == [PAGE_ROWS_MAX] * 3 + [1]
    assert shop.outcomes() == {}


def test_rows_stay_if_the_broker_goes_before_it_confirms_them(shop: Shop) -> None:
    keys = add(shop, "committed", count=2 * PAGE_ROWS_MAX)
    broker = Broker(dict.fromkeys(keys, LedgerOutcome.COMMITTED))
    broker.chunks_max = 1
    with refused("broker_gone"):
        sweep(shop, broker)
    assert set(shop.outcomes()) == set(keys[PAGE_ROWS_MAX:])


def test_a_ledger_that_was_exchanged_is_not_swept(shop: Shop) -> None:
    keys = add(shop, "committed")
    ledger = shop.ledger()
    uuid = ledger.uuid()
    shop.run("UPDATE escrowmq_ledger_id SET ledger_uuid = 'other'")
    try:
        with refused("ledger_differs"):
            ledger.sweep(Broker(dict.fromkeys(keys, LedgerOutcome.COMMITTED)))
        assert set(shop.outcomes()) == set(keys)
    finally:
        shop.run(f"UPDATE escrowmq_ledger_id SET ledger_uuid = '{uuid}'")
