"""A filter of expired names forgets none, and its size does not depend on how many there are."""

from __future__ import annotations

from escrowmq.transaction.expired_names import BYTES, EXPECTED_MAX, ExpiredNames


def test_a_name_that_was_added_is_always_found() -> None:
    expired = ExpiredNames()
    assert not expired.may_have("pay")
    for number in range(1_000):
        expired.add("app", f"query-{number}")
    assert all(expired.may_have("app", f"query-{number}") for number in range(1_000))
    # What it is made of is part of the name.
    assert not expired.may_have("appquery-1")
    assert not expired.may_have("query-1", "app")


def test_a_full_filter_mistakes_one_name_in_a_hundred() -> None:
    expired = ExpiredNames()
    for number in range(EXPECTED_MAX):
        expired.add(f"group-{number}")
    mistaken = sum(expired.may_have(f"other-{number}") for number in range(10_000))
    assert 0 < mistaken < 200
    assert len(expired.packed()) <= BYTES + 1_024


def test_it_is_as_it_was_after_a_checkpoint_and_few_names_take_few_bytes() -> None:
    expired, loaded = ExpiredNames(), ExpiredNames()
    assert expired.packed() == b""
    expired.add("lone\ud800surrogate")
    expired.add("pay")
    packed = expired.packed()
    assert len(packed) < 1_024
    assert expired.packed() is packed
    loaded.load(packed)
    assert loaded.may_have("pay")
    assert loaded.packed() is packed
    assert not loaded.may_have("ship")
    loaded.load(b"")
    assert not loaded.may_have("pay")
