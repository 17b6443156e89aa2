"""Background work: it is repeated, and its failures are kept and logged."""

from __future__ import annotations

import logging

import pytest

from escrowmq.broker.periodic.background import BACKOFF_S_MAX, PeriodicTasks, pause_s
from tests.unit.broker.wire import eventually
from tests.unit.logged import events


class Work:
    """Work that fails the first few times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.runs = 0

    async def __call__(self) -> None:
        self.runs += 1
        if self.runs <= self.failures:
            raise OSError(f"number {self.runs}")


async def test_a_failure_is_kept_told_once_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    background = PeriodicTasks(lambda: 17)
    work = Work(failures=2)
    with caplog.at_level(logging.ERROR):
        background.every(0.001, "sweep", work)
        await eventually(lambda: work.runs == 2)
        await eventually(lambda: background.failed and background.failed[0].failures == 2)
        (failed,) = background.failed
        assert (failed.work, failed.last_error) == ("sweep", "OSError('number 2')")
        assert (failed.failures_in_a_row, failed.last_failed_at_ms) == (2, 17)
        await eventually(lambda: work.runs >= 4)
    background.stop()
    (failed,) = background.failed
    assert (failed.failures, failed.failures_in_a_row) == (2, 0)
    assert events(caplog) == ["background_failed"]


async def test_failures_during_the_stop_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    background = PeriodicTasks(lambda: 17)

    async def work() -> None:
        background.is_over = True
        raise OSError

    background.every(0.001, "sweep", work)
    await eventually(lambda: background.is_over)
    background.stop()
    assert not background.failed
    assert not caplog.records


@pytest.mark.parametrize(
    ("seconds", "failures", "pause"),
    [
        (0.05, 0, 0.05),
        (0.05, 3, 0.4),
        (0.05, 10_000, BACKOFF_S_MAX),
        # A long interval is not shortened.
        (3_600.0, 5, 3_600.0),
    ],
)
def test_pauses_double_up_to_a_bound(seconds: float, failures: int, pause: float) -> None:
    assert pause_s(seconds, failures) == pytest.approx(pause)
