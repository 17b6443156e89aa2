"""How `txn explain` describes a Spark sink's transactions, at their home and elsewhere."""

from __future__ import annotations

import pytest

from escrowmq.cli.txn.explain_sink import held_by_sink
from escrowmq.model.sink_attempt import GROUP_PREFIX, PLAIN_QUERY, HeldAs, SinkAttempt, SinkRun

QUERY = "0f8fad5b-d9cb-469f-a165-70867728950e"


def attempt(query_id: str = QUERY, batch: int | str = 12) -> SinkAttempt:
    run = SinkRun(app_id="shop", query_id=query_id, run="0" * 8, opened_at=1_000)
    return SinkAttempt(run=run, batch=batch, partition=3, attempt="f" * 32)


def said(held_as: HeldAs) -> str:
    return "\n".join(held_by_sink(held_as.producer_group, held_as.transaction_id))


def test_an_attempt_is_told_with_its_batch_and_what_ends_it() -> None:
    told = said(attempt().at_home)
    assert f"app id shop, query {QUERY}, batch 12, partition 3" in told
    assert "began at log offset 1000" in told
    assert "a later run of it has begun" in told
    assert "when it is 1 d old" in told
    assert "a plain write, batch daily" in said(attempt(PLAIN_QUERY, "daily").at_home)


def test_a_part_is_told_with_its_home() -> None:
    told = said(attempt().elsewhere("b-2", 77))
    assert "app id shop" in told
    assert "Broker b-2 decides it: half message 77" in told
    assert f"txn explain {attempt().transaction_id} " in told
    assert "evidence" not in told


@pytest.mark.parametrize(
    ("held_as", "expected"),
    [
        (HeldAs(f"{GROUP_PREFIX}shop", "odd"), "does not say which batch"),
        (HeldAs(f"{GROUP_PREFIX}shop@b-2", "odd"), "does not say which broker decides it"),
    ],
)
def test_a_name_that_tells_nothing_is_no_error(held_as: HeldAs, expected: str) -> None:
    assert expected in said(held_as)
