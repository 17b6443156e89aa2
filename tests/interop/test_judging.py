"""The judge of the storm finds every fault that a broker could have."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.interop.judging import judge
from tests.interop.values import Received


def message(keys: str, queue: int, queue_offset: int) -> Received:
    return Received(
        message_id=keys,
        offset_message_id=None,
        topic="t",
        queue=queue,
        queue_offset=queue_offset,
        log_offset=None,
        keys=keys,
        tags=None,
        properties={},
        body=b"",
        reconsume_times=0,
        stored_at_ms=0,
        born_at_ms=0,
        prepared_offset=0,
        sys_flag=None,
    )


A, B, C = message("a", 0, 0), message("b", 0, 1), message("c", 1, 0)


def verdict(log: Sequence[Received], seen: Sequence[Received] | None = None) -> None:
    """Judge a log: ``a`` and ``b`` must be in it, ``c`` may be, and nothing else."""
    judge(log, required={"a", "b"}, possible={"c"}, seen={"reader": log if seen is None else seen})


def test_a_correct_log_passes() -> None:
    verdict([A, B])
    verdict([A, B, C], seen=[B, C, A, A])


@pytest.mark.parametrize(
    ("log", "seen", "says"),
    [
        ([A], None, "not in the log"),
        ([A, B, message("a", 0, 2)], None, "twice"),
        ([A, B, message("rolled back", 0, 2)], None, "should not be"),
        ([A, message("b", 0, 2)], None, "gaps"),
        # Two messages at the same place.
        ([A, B, message("c", 0, 1)], None, "gaps"),
        ([A, B], [A], "did not get"),
        # Before a crash, this place held another message.
        ([A, B], [A, B, message("c", 0, 1)], "saw what is not"),
        ([A, B], [A, B, C], "saw what is not"),
    ],
)
def test_a_wrong_log_is_found(log: list[Received], seen: list[Received] | None, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        verdict(log, seen)
