"""Requests that no frame or table could hold are refused before anything is written."""

from __future__ import annotations

import pytest

from escrowmq.transaction.commands import Append, Prepare
from tests.unit.store.helpers import T0, Driver, message

MIB = 1024 * 1024


def test_a_request_that_would_not_fit_into_a_frame_is_refused() -> None:
    driver = Driver()
    body = message(bytes(4 * MIB))
    for command in (
        Append(messages=(body,) * 17),
        Prepare(group="g", transaction_id="t", messages=(body,) * 17),
        Prepare(group="g", transaction_id="t", messages=(body,) * 17, number=0, bulk=True),
    ):
        assert driver.refused(command).code in ("request_too_large", "transaction_too_large")
    assert driver.store.log.end == 0


@pytest.mark.parametrize("at_ms", [2**63 - 1, 2**63])
def test_a_time_beyond_all_times_is_refused(at_ms: int) -> None:
    driver = Driver()
    driver.refused(Append(messages=(message("x", deliver_at_ms=at_ms),)))
    assert driver.store.log.end == 0


@pytest.mark.parametrize("delay_ms", [-1, 2**63 - 1, 2**63])
def test_a_delay_beyond_all_times_is_refused(delay_ms: int) -> None:
    driver = Driver()
    late = message("x", deliver_after_ms=delay_ms)
    driver.refused(Prepare(group="g", transaction_id="t", messages=(late,)))
    assert driver.store.log.end == 0


def test_an_empty_id_finds_no_transaction() -> None:
    """Messages without a transaction have an empty id too, and must not be joined."""
    driver = Driver()
    driver.append(message("scheduled", deliver_at_ms=T0 + 5))
    driver = driver.closed_and_opened()
    driver.refused(Prepare(group="g", transaction_id="", messages=(message("x"),), number=0))
    assert [driver.hold("", message("x")).half_offset for _ in range(2)] == [1, 2]
