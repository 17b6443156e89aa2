"""Each transaction raises one alert, and the broker remembers a limited number of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.checks import contradictions
from escrowmq.broker.checks.contradictions import Contradictions
from escrowmq.model.resolution import Resolution
from escrowmq.transaction.commands import EndReply
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    import pytest


def note(alerts: Contradictions, half_offset: int) -> None:
    stands = EndReply(
        half_offset=half_offset, state=State.ROLLED_BACK, by="settle", at_ms=1, repeated=True
    )
    alerts.note(Resolution.COMMIT, "producer", stands)


def test_each_transaction_raises_one_alert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contradictions, "REMEMBERED_MAX", 2)
    alerts = Contradictions()
    for half_offset in (1, 2, 1, 2):
        note(alerts, half_offset)
    assert alerts.count == 2
    # The third transaction displaces the oldest one.
    note(alerts, 3)
    note(alerts, 2)
    assert alerts.count == 3
    note(alerts, 1)
    assert alerts.count == 4
