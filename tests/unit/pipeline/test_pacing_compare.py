"""When half and op records are compared with the state stores."""

from __future__ import annotations

from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.service.pacing import COMPARE_IDLE_MS, Pace
from escrowmq.pipeline.service.runs import COMPARE
from tests.unit.pipeline.test_pacing import said

CONFIG = PipelineConfig(compare_interval_ms=60_000)


def test_records_are_compared_one_interval_after_the_start_and_whenever_the_log_has_grown() -> None:
    pace = Pace(CONFIG)
    assert pace.begin_due(1_000) == []
    pace.note(said(log_end=10))
    assert COMPARE not in pace.begin_due(1_000)
    assert pace.compare_at_ms() == 61_000
    assert COMPARE in pace.begin_due(61_000)
    assert pace.compare_at_ms() is None
    pace.compare_ended(62_000, is_failed=False)
    # Without new records, it looks rarely.
    assert pace.compare_at_ms() == 61_000 + COMPARE_IDLE_MS
    pace.note(said(log_end=11))
    assert pace.compare_at_ms() == 121_000


def test_a_comparison_that_is_behind_goes_on() -> None:
    pace = Pace(CONFIG)
    pace.note(said(log_end=10))
    pace.compare_began(1_000)
    pace.compare_ended(2_000, is_failed=False, told=[{"is_behind": True}])
    assert pace.compare_at_ms() == 61_000


def test_without_the_setting_nothing_is_compared() -> None:
    pace = Pace(PipelineConfig(compare=False))
    pace.note(said(log_end=10))
    assert COMPARE not in pace.begin_due(10**9)
