"""Settling by hand goes through ledger and fence, and a forced decision is recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.client.producer.decide_by_hand import decide_by_hand
from escrowmq.model.errors import RequestRefused
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.native.headers import HoldHeader
from escrowmq.protocol.native.operator_headers import DecideByHandAnswer
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import SentRow
from escrowmq.testing import InProcessBroker
from tests.ledger.shops import GROUP, Shop, new_id, refused

COMMIT, ROLLBACK = Resolution.COMMIT, Resolution.ROLLBACK
ALLOWED_MS = 60_000


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def calls(broker: InProcessBroker) -> Iterator[NativeCalls]:
    with NativeCalls(broker.broker_address) as calls:
        yield calls


def hold(calls: NativeCalls, ledger: str) -> str:
    key = new_id()
    message = SentRow(
        topic="orders", queue_id=0, body=b"x", properties="", flag=0, sys_flag=0, born_at_ms=1
    )
    header = HoldHeader(
        producer_group=GROUP,
        transaction_id=key,
        number=0,
        ledger=ledger,
        allowed_ms=ALLOWED_MS,
    )
    calls.call(NativeCode.HOLD_HALVES, header, [message])
    return key


def by_hand(
    calls: NativeCalls, shop: Shop | None, key: str, resolution: Resolution, *, force: bool = False
) -> DecideByHandAnswer:
    ledgers = {} if shop is None else {shop.ledger().uuid(): shop.ledger()}
    return decide_by_hand(
        calls,
        ledgers,
        transaction_id=key,
        resolution=resolution,
        reason="asked the customer",
        by="ada",
        force=force,
    )


def commit_row(shop: Shop, key: str) -> None:
    shop.run(f"INSERT INTO escrowmq_ledger VALUES ('{key}', '{GROUP}', 'committed', 1)")


def test_a_decision_as_the_ledgers_is_made(calls: NativeCalls, shop: Shop) -> None:
    key = hold(calls, shop.ledger().uuid())
    commit_row(shop, key)
    answer = by_hand(calls, shop, key, COMMIT)
    assert (answer.decided, answer.decided_by) == ("committed", "ada by hand: asked the customer")
    # The first decision stands, and a repeated request gets the same answer.
    assert by_hand(calls, shop, key, COMMIT).is_repeated
    with refused("already_committed"):
        by_hand(calls, shop, key, ROLLBACK)


def test_a_decision_against_the_ledger_is_refused_unless_it_is_forced(
    calls: NativeCalls, shop: Shop
) -> None:
    key = hold(calls, shop.ledger().uuid())
    commit_row(shop, key)
    with pytest.raises(RequestRefused, match=r"against_ledger.*says='committed'"):
        by_hand(calls, shop, key, ROLLBACK)
    answer = by_hand(calls, shop, key, ROLLBACK, force=True)
    assert answer.decided == "rolled_back"
    assert answer.decided_by.endswith("(forced; the ledger said committed)")
    # The row stays as evidence.
    assert shop.outcomes() == {key: "committed"}


def test_a_rollback_of_what_is_absent_is_fenced_past_its_deadline(
    broker: InProcessBroker, calls: NativeCalls, shop: Shop
) -> None:
    key = hold(calls, shop.ledger().uuid())
    broker.advance(ms=ALLOWED_MS)
    with pytest.raises(RequestRefused, match=r"against_ledger.*says='absent'"):
        by_hand(calls, shop, key, ROLLBACK)
    assert shop.outcomes() == {}
    broker.advance(ms=1)
    assert by_hand(calls, shop, key, ROLLBACK).decided == "rolled_back"
    assert shop.outcomes() == {key: "rolled_back"}


def test_a_forced_rollback_is_fenced_at_once(calls: NativeCalls, shop: Shop) -> None:
    key = hold(calls, shop.ledger().uuid())
    answer = by_hand(calls, shop, key, ROLLBACK, force=True)
    assert answer.decided_by.endswith("(forced; the ledger said rolled_back)")
    assert shop.outcomes() == {key: "rolled_back"}


def test_a_commit_of_what_is_absent_is_never_written_into_the_ledger(
    broker: InProcessBroker, calls: NativeCalls, shop: Shop
) -> None:
    key = hold(calls, shop.ledger().uuid())
    broker.advance(seconds=3_600)
    with pytest.raises(RequestRefused, match=r"against_ledger.*says='absent'"):
        by_hand(calls, shop, key, COMMIT)
    assert by_hand(calls, shop, key, COMMIT, force=True).decided == "committed"
    assert shop.outcomes() == {}


def test_a_missing_ledger_prevents_the_decision(calls: NativeCalls) -> None:
    key = hold(calls, "somewhere else")
    with pytest.raises(RequestRefused, match=r"against_ledger.*says='not_given'"):
        by_hand(calls, None, key, ROLLBACK)
    assert by_hand(calls, None, key, ROLLBACK, force=True).decided == "rolled_back"


def test_a_transaction_without_a_ledger_is_decided_as_the_operator_says(calls: NativeCalls) -> None:
    key = hold(calls, "")
    answer = by_hand(calls, None, key, COMMIT)
    assert (answer.decided, answer.decided_by) == ("committed", "ada by hand: asked the customer")


def test_an_unknown_transaction_is_refused(calls: NativeCalls) -> None:
    with refused("transaction_unknown", "no_such_half_message"):
        by_hand(calls, None, "never held", COMMIT)
