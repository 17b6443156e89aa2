"""When settling, archiving or upkeep starts. Times are milliseconds of any clock."""

from __future__ import annotations

from msgspec.structs import replace

from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.service.pacing import (
    ATTEMPTS_MS,
    LEFT_OVER_REST_MS_MAX,
    Heard,
    Pace,
)
from escrowmq.pipeline.service.runs import FAILED_MS_MAX
from escrowmq.protocol.native.pipeline_headers import AwaitDueAnswer

CONFIG = PipelineConfig(
    settle_interval_ms=5_000,
    archive_interval_ms=10_000,
    lake_upkeep_interval_ms=100_000,
)


NOTHING = AwaitDueAnswer(due=0, undecided=0, sink_attempts=0, batches_decided=0, log_end=0)


def said(broker: str = "a:1", *, is_news: bool = False, **facts: int) -> Heard:
    return Heard(broker=broker, answer=replace(NOTHING, **facts), is_news=is_news)


def news(broker: str = "a:1", **facts: int) -> Heard:
    return said(broker, is_news=True, **facts)


def round_at(pace: Pace, began_ms: int, ended_ms: int, *, is_failed: bool = False) -> None:
    pace.round_began(began_ms)
    pace.settling.end(ended_ms, is_failed=is_failed)


def test_with_nothing_due_nothing_starts() -> None:
    pace = Pace(CONFIG)
    assert pace.settle_at_ms() is None
    pace.note(said(undecided=1_000_000))
    assert pace.settle_at_ms() is None


def test_the_first_that_is_due_is_looked_at_at_once() -> None:
    pace = Pace(CONFIG)
    pace.note(said(due=1))
    assert pace.settle_at_ms() == 0


def test_while_a_round_runs_none_starts() -> None:
    pace = Pace(CONFIG)
    pace.note(said(due=1))
    pace.round_began(1_000)
    pace.note(news(due=2))
    assert pace.settle_at_ms() is None


def test_a_notice_from_before_a_round_does_not_start_another() -> None:
    pace = Pace(CONFIG)
    pace.note(said(due=1))
    round_at(pace, 1_000, 1_100)
    assert pace.settle_at_ms() is None


def test_work_that_a_round_left_is_tried_again_after_the_interval() -> None:
    pace = Pace(CONFIG)
    pace.note(said(due=1))
    round_at(pace, 1_000, 1_100)
    pace.note(said(due=1))
    assert pace.settle_at_ms() == 6_000


def test_news_start_a_round_after_a_short_rest() -> None:
    pace = Pace(CONFIG)
    pace.note(said(due=1))
    round_at(pace, 1_000, 1_100)
    pace.note(news(due=1))
    # The round took 100 ms, so the pipeline rests 900 ms.
    assert pace.settle_at_ms() == 2_000


def test_news_stay_news_until_a_round_has_looked_at_them() -> None:
    pace = Pace(CONFIG)
    pace.note(said(due=1))
    round_at(pace, 1_000, 1_100)
    pace.note(news(due=1))
    pace.note(said(due=1))
    assert pace.settle_at_ms() == 2_000
    round_at(pace, 2_000, 2_100)
    pace.note(said(due=1))
    assert pace.settle_at_ms() == 7_000


def test_a_long_round_rests_no_longer_than_the_interval() -> None:
    pace = Pace(CONFIG)
    pace.note(said(due=1))
    round_at(pace, 1_000, 4_000)
    pace.note(news(due=1))
    assert pace.settle_at_ms() == 6_000
    round_at(pace, 6_000, 26_000)
    pace.note(news(due=1))
    assert pace.settle_at_ms() == 26_000


def test_after_a_long_round_with_nothing_new_most_of_the_time_is_others() -> None:
    pace = Pace(CONFIG)
    pace.note(said(due=1))
    round_at(pace, 1_000, 21_000)
    pace.note(said(due=1))
    assert pace.settle_at_ms() == 61_000
    round_at(pace, 100_000, 200_000)
    pace.note(said(due=1))
    assert pace.settle_at_ms() == 200_000 + LEFT_OVER_REST_MS_MAX


def test_sink_attempts_are_looked_at_when_a_batch_was_decided_or_a_minute_has_passed() -> None:
    pace = Pace(CONFIG)
    pace.note(said(sink_attempts=1, batches_decided=7))
    assert pace.settle_at_ms() == 0
    round_at(pace, 1_000, 1_100)
    pace.note(said(sink_attempts=1, batches_decided=7))
    assert pace.settle_at_ms() == 1_000 + ATTEMPTS_MS
    pace.note(said(sink_attempts=1, batches_decided=8))
    assert pace.settle_at_ms() == 6_000


def test_one_broker_is_enough() -> None:
    pace = Pace(CONFIG)
    pace.note(said("a:1"))
    pace.note(said("b:1", due=1))
    assert pace.settle_at_ms() == 0


def test_a_broker_that_is_away_starts_nothing() -> None:
    pace = Pace(CONFIG)
    pace.note(said(due=1))
    pace.note_away("a:1")
    assert pace.settle_at_ms() is None


def test_after_failures_in_a_row_the_wait_doubles_up_to_a_minute() -> None:
    pace = Pace(CONFIG)
    waits = []
    for _ in range(6):
        pace.note(news(due=1))
        round_at(pace, 1_000, 1_100, is_failed=True)
        pace.note(news(due=1))
        at_ms = pace.settle_at_ms()
        assert at_ms is not None
        waits.append(at_ms - 1_000)
    assert waits == [5_000, 10_000, 20_000, 40_000, FAILED_MS_MAX, FAILED_MS_MAX]
    round_at(pace, 1_000, 1_100)
    pace.note(news(due=1))
    assert pace.settle_at_ms() == 2_000


def test_the_log_is_archived_when_it_has_grown_and_the_interval_has_passed() -> None:
    pace = Pace(CONFIG)
    pace.note(said(log_end=0))
    assert pace.archive_at_ms() is None
    pace.note(said(log_end=100))
    assert pace.archive_at_ms() == 0
    pace.archive_began(1_000)
    pace.note(said(log_end=150))
    assert pace.archive_at_ms() is None
    pace.archive_ended(2_000, is_failed=False)
    assert (pace.archive_lag(), pace.archive_at_ms()) == ({"a:1": 50}, 11_000)


def test_a_failed_run_of_archiving_is_repeated() -> None:
    pace = Pace(CONFIG)
    pace.note(said(log_end=100))
    pace.archive_began(1_000)
    pace.archive_ended(2_000, is_failed=True)
    assert (pace.archive_lag(), pace.archive_at_ms()) == ({"a:1": 100}, 11_000)


def test_consumers_that_went_on_are_archived_too() -> None:
    pace = Pace(CONFIG)
    pace.note_progress()
    assert pace.archive_at_ms() == 0
    pace.archive_began(1_000)
    pace.archive_ended(1_100, is_failed=False)
    assert pace.archive_at_ms() is None


def test_archiving_can_be_off() -> None:
    pace = Pace(PipelineConfig(archive=False))
    pace.note(said(log_end=100))
    assert pace.archive_at_ms() is None


def archived(pace: Pace, began_ms: int, ended_ms: int, *, is_failed: bool = False) -> None:
    pace.archive_began(began_ms)
    pace.archive_ended(ended_ms, is_failed=is_failed)


def test_the_lake_is_kept_up_once_something_was_archived_and_then_once_in_an_interval() -> None:
    pace = Pace(CONFIG)
    pace.note(said(log_end=100))
    assert pace.upkeep_at_ms() is None
    archived(pace, 1_000, 2_000, is_failed=True)
    assert pace.upkeep_at_ms() is None
    archived(pace, 3_000, 4_000)
    assert pace.upkeep_at_ms() == 0
    pace.keeping_up.begin(4_000)
    assert pace.upkeep_at_ms() is None
    pace.keeping_up.end(5_000, is_failed=False)
    # Rows reach the end of their retention even if no new ones arrive.
    assert (pace.archive_at_ms(), pace.upkeep_at_ms()) == (None, 104_000)


def test_archiving_without_a_rest_does_not_keep_the_upkeep_from_starting() -> None:
    pace = Pace(CONFIG)
    archived(pace, 1_000, 2_000)
    pace.archive_began(2_000)
    assert pace.upkeep_at_ms() == 0


def test_a_failed_upkeep_waits_as_long_as_any() -> None:
    pace = Pace(CONFIG)
    archived(pace, 1_000, 2_000)
    for _ in range(3):
        pace.keeping_up.begin(2_000)
        pace.keeping_up.end(3_000, is_failed=True)
    assert pace.upkeep_at_ms() == 102_000
