"""The sink's names, and what can be read from them."""

from __future__ import annotations

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.model.sink_attempt import (
    NO_POSITION,
    PLAIN_QUERY,
    SinkAttempt,
    SinkRun,
    check_app_id,
    check_batch_name,
    is_part,
    parse_attempt,
    parse_part,
)

STREAM = SinkRun(
    app_id="orders-to-mail",
    query_id="0b9a6a52-5f6f-4b0e-8f0c-2f0c5c0d9d11",
    run="1a2b3c4d",
    opened_at=1_790_000_000_000,
)
PLAIN = SinkRun(app_id="spark", query_id=PLAIN_QUERY, run="00000000", opened_at=5)
UUID = "7f8b1c1e1f5a4c5e9a0d2b3c4d5e6f70"


@pytest.mark.parametrize(
    "attempt",
    [
        SinkAttempt(run=STREAM, batch=0, partition=0, attempt=UUID),
        SinkAttempt(run=STREAM, batch=2**40, partition=99_999, attempt=UUID),
        SinkAttempt(run=PLAIN, batch="2026-11-16T10:00:00+01:00", partition=3, attempt=UUID),
        # A batch name stays a string, even if it looks like a number.
        SinkAttempt(run=PLAIN, batch="17", partition=3, attempt=UUID),
    ],
)
def test_an_attempt_is_read_back_from_its_names(attempt: SinkAttempt) -> None:
    assert parse_attempt(attempt.run.producer_group, attempt.transaction_id) == attempt


def test_a_time_of_a_clock_in_an_older_name_is_no_position() -> None:
    named = f"{STREAM.query_id}/7/1790000000000/1a2b3c4d/0/{UUID}"
    read = parse_attempt("%SINK%orders", named)
    assert read is not None
    assert (read.batch, read.run.opened_at) == (7, NO_POSITION)


@pytest.mark.parametrize(
    ("group", "transaction_id"),
    [
        ("orders", f"write/b/1/00000000/0/{UUID}"),
        ("%SINK%app", ""),
        ("%SINK%app", "7F8B1C1E1F5A4C5E9A0D2B3C4D5E6F70"),
        ("%SINK%app", f"write/b/1/00000000/{UUID}"),
        ("%SINK%app", f"write/b/1/00000000/0/{UUID}/0"),
        # A stream's batch is a number.
        ("%SINK%app", f"{STREAM.query_id}/b/1/00000000/0/{UUID}"),
    ],
)
def test_a_foreign_transaction_id_is_no_attempt(group: str, transaction_id: str) -> None:
    assert parse_attempt(group, transaction_id) is None


@pytest.mark.parametrize("app_id", ["", "a b", "a/b", "a.b", "%SINK%a", "a" * 65, "ä"])
def test_an_app_id_that_no_group_could_have_is_refused(app_id: str) -> None:
    with pytest.raises(RequestRefused, match=r"bad_option.*letters.*appId"):
        check_app_id(app_id)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a\x01", "n" * 65])
def test_a_batch_name_that_no_id_could_have_is_refused(name: str) -> None:
    with pytest.raises(RequestRefused, match=r"bad_option.*letters.*batchId"):
        check_batch_name(name)


def test_names_that_are_in_order_are_given_back() -> None:
    assert check_app_id("Orders_to-mail-2") == "Orders_to-mail-2"
    assert check_batch_name("2026-11-16T10:00:00+01:00") == "2026-11-16T10:00:00+01:00"


# Parts at other brokers.

ATTEMPT = SinkAttempt(run=STREAM, batch=7, partition=3, attempt=UUID)


@pytest.mark.parametrize("home", ["broker-a", "a.b:1", "a@b"])
def test_a_part_s_names_tell_its_home_and_what_it_is_there(home: str) -> None:
    held_as = ATTEMPT.elsewhere(home, 42)
    assert is_part(held_as.producer_group)
    part = parse_part(held_as.producer_group, held_as.transaction_id)
    assert part is not None
    assert (part.broker, part.half_offset, part.held_as) == (home, 42, ATTEMPT.at_home)
    # Evidence is for attempts, so a part must not be taken for one.
    assert parse_attempt(held_as.producer_group, held_as.transaction_id) is None


def test_a_batch_decided_at_home_is_no_part() -> None:
    at_home = ATTEMPT.at_home
    assert not is_part(at_home.producer_group)
    assert not is_part("somebody@home")
    assert parse_part(at_home.producer_group, at_home.transaction_id) is None


@pytest.mark.parametrize(
    ("group", "transaction_id"),
    [
        ("%SINK%app@", f"write/b/1/00000000/0/{UUID}@1"),
        ("%SINK%app@a", f"write/b/1/00000000/0/{UUID}"),
        ("%SINK%app@a", f"write/b/1/00000000/0/{UUID}@"),
        ("%SINK%app@a", f"write/b/1/00000000/0/{UUID}@-1"),
        ("%SINK%app@a", f"write/b/1/00000000/0/{UUID}@{10**18}"),
        ("%SINK%app@a", "somebody's@1"),
        ("app@a", f"write/b/1/00000000/0/{UUID}@1"),
    ],
)
def test_names_that_tell_no_home_are_not_guessed(group: str, transaction_id: str) -> None:
    assert parse_part(group, transaction_id) is None
