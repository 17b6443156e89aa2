"""The memory of decided batches."""

from __future__ import annotations

import pytest

from escrowmq.transaction.batches import Batches


@pytest.mark.parametrize(
    ("query_id", "batch_id", "verdict"),
    [
        # The query that decided batch 5: all up to it are done.
        ("q", 0, "done"),
        ("q", 5, "done"),
        ("q", 6, "new"),
        # Another query of the same app: it lost its checkpoint, or shares an app id.
        ("other", 5, "taken"),
        ("other", 0, "taken"),
        # It may go on where nobody has been.
        ("other", 6, "new"),
        # Names are a world of their own.
        ("q", "5", "new"),
        ("w", "write-1", "done"),
        ("other", "write-1", "taken"),
        ("w", "write-2", "new"),
    ],
)
def test_a_batch_is_new_done_or_taken(query_id: str, batch_id: int | str, verdict: str) -> None:
    batches = Batches()
    batches.apply("app", "q", 5, log_offset=100)
    batches.apply("app", "w", "write-1", log_offset=200)
    assert batches.judge("app", query_id, batch_id) == verdict
    assert batches.judge("another app", query_id, batch_id) == "new"


def test_the_highest_batch_never_goes_back() -> None:
    batches = Batches()
    batches.apply("app", "q", 5, log_offset=100)
    batches.apply("app", "q", 3, log_offset=50)
    assert batches.apps["app"].highest == {"q": 5}


def test_a_query_that_took_over_is_judged_by_its_own_batches() -> None:
    batches = Batches()
    batches.apply("app", "old", 5, log_offset=0)
    batches.apply("app", "new", 6, log_offset=0)
    assert batches.judge("app", "new", 5) == "done"
    assert batches.judge("app", "new", 7) == "new"
    assert batches.judge("app", "old", 6) == "taken"


def test_numbers_are_kept_for_ever_and_names_while_the_log_has_them() -> None:
    batches = Batches()
    batches.apply("app", "q", 5, log_offset=100)
    batches.apply("app", "w", "early", log_offset=100)
    batches.apply("app", "w", "late", log_offset=200)
    batches.forget_below(200)
    assert batches.judge("app", "q", 5) == "done"
    assert batches.judge("app", "w", "early") == "new"
    assert batches.judge("app", "w", "late") == "done"
