"""The memory of decided batches."""

from __future__ import annotations

import pytest

from escrowmq.transaction.memory.batches import AppBatches, DecidedBatches, SavedExpiredQueries
from escrowmq.transaction.memory.expired_names import BYTES
from escrowmq.transaction.records import BatchDecided


def decided(
    query_id: str, batch_id: int | str, content: str = "", *, is_gapless: bool = False
) -> BatchDecided:
    return BatchDecided(
        "app", query_id, batch_id, "spark", [], [], [], [], content=content, is_gapless=is_gapless
    )


@pytest.mark.parametrize(
    ("query_id", "batch_id", "verdict"),
    [
        # The query that decided batch 5: every batch up to 5 is done.
        ("q", 0, "done"),
        ("q", 5, "done"),
        ("q", 6, "new"),
        # Another query of the same app, which lost its checkpoint or shares the app id.
        ("other", 5, "taken"),
        ("other", 0, "taken"),
        # It may continue after the last decided number.
        ("other", 6, "new"),
        # Names are independent of numbers.
        ("q", "5", "new"),
        ("w", "write-1", "done"),
        ("other", "write-1", "taken"),
        ("w", "write-2", "new"),
    ],
)
def test_a_batch_is_new_done_or_taken(query_id: str, batch_id: int | str, verdict: str) -> None:
    batches = DecidedBatches()
    batches.apply(decided("q", 5), 100)
    batches.apply(decided("w", "write-1"), 200)
    assert batches.judge("app", query_id, batch_id) == verdict
    assert batches.judge("another app", query_id, batch_id) == "new"


def test_the_highest_batch_never_goes_back() -> None:
    batches = DecidedBatches()
    batches.apply(decided("q", 5), 100)
    batches.apply(decided("q", 3), 50)
    assert batches.apps["app"].highest == {"q": 5}


def test_a_query_that_took_over_is_judged_by_its_own_batches() -> None:
    batches = DecidedBatches()
    batches.apply(decided("old", 5), 0)
    batches.apply(decided("new", 6), 0)
    assert batches.judge("app", "new", 5) == "done"
    assert batches.judge("app", "new", 7) == "new"
    assert batches.judge("app", "old", 6) == "taken"


def test_names_are_kept_while_the_log_has_them() -> None:
    batches = DecidedBatches()
    batches.apply(decided("q", 5), 100)
    batches.apply(decided("w", "early"), 100)
    batches.apply(decided("w", "late"), 200)
    batches.forget_below(200)
    assert batches.judge("app", "q", 5) == "done"
    assert batches.judge("app", "w", "early") == "new"
    assert batches.judge("app", "w", "late") == "done"


@pytest.mark.parametrize(
    ("query_id", "content", "verdict"),
    [
        # A repeated run of the same query may find other rows.
        ("q", "20:aa", "done"),
        ("q", "21:bb", "done"),
        ("q", "", "done"),
        ("other", "20:aa", "done"),
        ("other", "21:bb", "taken"),
        ("other", "", "taken"),
    ],
)
def test_another_query_must_bring_the_same_rows(query_id: str, content: str, verdict: str) -> None:
    batches = DecidedBatches()
    batches.apply(decided("q", "name", "20:aa"), 1)
    assert batches.judge("app", query_id, "name", content) == verdict


def test_a_batch_of_which_nothing_was_said_has_no_content() -> None:
    batches = DecidedBatches()
    batches.apply(decided("q", "name"), 1)
    assert batches.judge("app", "other", "name", "") == "taken"


def test_a_gap_in_the_numbers_of_a_query_that_has_none_shows_that_decisions_are_lost() -> None:
    batches = DecidedBatches()
    batches.apply(decided("q", 3), 1)
    # This query may leave out empty batches.
    assert not batches.is_after_gap("app", "q", 9)
    for number in (5, 6):
        batches.apply(decided("q", number, is_gapless=True), 2)
    assert batches.apps["app"].gapless == ["q"]
    after_gap = [number for number in (6, 7, 8, 9) if batches.is_after_gap("app", "q", number)]
    assert after_gap == [8, 9]
    # A query new to this broker may have begun elsewhere, and names have no order.
    assert not batches.is_after_gap("app", "other", 9)
    assert not batches.is_after_gap("other app", "q", 9)
    assert not batches.is_after_gap("app", "q", "9")


# Queries that expire.


def test_an_expired_query_never_decides_a_batch_twice_and_may_go_on() -> None:
    batches = DecidedBatches()
    batches.apply(decided("q", 5, is_gapless=True), 100, 1_000)
    assert list(batches.unused(["app", "no app"], 1_000)) == []
    assert list(batches.unused(["app", "no app"], 1_001)) == [("app", "q")]
    for _ in range(2):
        batches.expire([("app", "q")])
    # The batch may be decided, but the record of it is gone.
    assert batches.judge("app", "q", 5) == "expired"
    assert batches.judge("app", "q", 6) == "new"
    assert not batches.is_after_gap("app", "q", 9)
    # For other queries these numbers are still taken.
    assert batches.judge("app", "other", 5) == "taken"
    assert batches.judge("app", "other", 6) == "new"
    batches.apply(decided("q", 6), 200, 2_000)
    assert batches.judge("app", "q", 6) == "done"
    assert batches.judge("app", "other", 6) == "taken"


def test_other_queries_of_the_app_keep_their_numbers() -> None:
    batches = DecidedBatches()
    batches.apply(decided("old", 9), 100, 1_000)
    batches.apply(decided("young", 20), 100, 9_000)
    batches.apply(decided("young", "name"), 100, 9_000)
    assert batches.is_unused("app", "old", 2_000)
    assert not batches.is_unused("app", "young", 2_000)
    assert not batches.is_unused("app", "nobody", 2_000)
    assert not batches.is_unused("no app", "old", 2_000)
    batches.expire([("app", "old"), ("no app", "q")])
    assert batches.judge("app", "young", 20) == "done"
    assert batches.judge("app", "third", 20) == "taken"
    assert batches.apps["app"].highest == {"young": 20}
    batches.expire([("app", "young")])
    # The named batch keeps the app until retention deletes its decision.
    assert list(batches.apps) == ["app"]
    batches.forget_below(101)
    assert batches.apps == {}
    assert batches.knows("app")
    assert batches.judge("app", "young", 20) == "expired"
    assert batches.judge("app", "third", 20) == "taken"


def test_expired_apps_take_a_fixed_space_and_none_of_their_batches_is_decided_twice() -> None:
    batches = DecidedBatches()
    sizes = set()
    queries = [(f"app-{number}", "q", number % 100) for number in range(20_000)]
    for app_id, query_id, number in queries:
        batches.apply(BatchDecided(app_id, query_id, number, "spark", [], [], [], []), 1, 1)
        batches.expire([(app_id, query_id)])
        if number == 0:
            saved = batches.expired.saved()
            sizes.add(tuple(len(part) for part in (saved.queries, saved.apps, saved.highest)))
    assert batches.apps == {}
    assert sizes == {(BYTES, BYTES, BYTES)}
    assert all(batches.judge(*query) == "expired" for query in queries)
    assert all(batches.judge(app_id, "other", at) != "new" for app_id, _, at in queries)
    # Every query may continue; apps that share slots have numbers below 100.
    assert all(batches.judge(app_id, query_id, 100) == "new" for app_id, query_id, _ in queries)
    # Few new apps are mistaken for expired ones.
    mistaken = sum(batches.judge(f"new-{number}", "q", 0) != "new" for number in range(10_000))
    assert mistaken < 30


def test_an_app_with_nothing_but_names_is_forgotten_with_the_last_of_them() -> None:
    batches = DecidedBatches()
    batches.apply(decided("w", "early"), 100)
    batches.forget_below(100)
    assert list(batches.apps) == ["app"]
    batches.forget_below(101)
    assert batches.apps == {}


def test_decided_and_expired_queries_survive_a_checkpoint() -> None:
    batches, loaded = DecidedBatches(), DecidedBatches()
    batches.apply(decided("q", 5), 100, 1_000)
    batches.expire([("app", "q")])
    saved = batches.saved()
    loaded.load(saved, batches.expired.saved(), 5_000)
    assert loaded.judge("app", "q", 5) == "expired"
    assert loaded.judge("app", "q", 6) == "new"
    assert loaded.expired.saved() == batches.expired.saved()
    # A query without a time comes from a release that recorded none; its time counts from the load.
    saved["app"] = AppBatches({"old": 3})
    loaded.load(saved, SavedExpiredQueries(), 5_000)
    assert not loaded.expired.queries.may_have("app", "q")
    assert list(loaded.unused(["app"], 5_001)) == [("app", "old")]
    assert list(loaded.unused(["app"], 5_000)) == []
    assert saved["app"].decided_at_ms == {}
