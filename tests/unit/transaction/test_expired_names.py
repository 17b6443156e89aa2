"""The filters of expired names forget none, and their size does not depend on their content."""

from __future__ import annotations

import pytest

from escrowmq.transaction.memory.expired_names import BYTES, ExpiredNames, ExpiredNumbers


def test_a_name_that_was_added_is_always_found() -> None:
    expired = ExpiredNames()
    assert not expired.may_have("pay")
    for number in range(1_000):
        expired.add("app", f"query-{number}")
    assert all(expired.may_have("app", f"query-{number}") for number in range(1_000))
    # The division into strings is part of the name.
    assert not expired.may_have("appquery-1")
    assert not expired.may_have("query-1", "app")


@pytest.mark.parametrize(("names", "mistaken_max"), [(1_000, 1), (10_000, 20), (100_000, 500)])
def test_few_names_are_mistaken_for_expired_ones(names: int, mistaken_max: int) -> None:
    expired, loaded = ExpiredNames(), ExpiredNames()
    for number in range(names):
        expired.add(f"group-{number}")
    mistaken = sum(expired.may_have(f"other-{number}") for number in range(10_000))
    assert mistaken <= mistaken_max
    assert len(expired.saved()) == BYTES
    loaded.load(expired.saved())
    assert all(loaded.may_have(f"group-{number}") for number in range(names))
    loaded.add("group-0")
    assert loaded.saved() == expired.saved()


def test_a_filter_is_as_it_was_after_a_checkpoint_and_an_empty_one_takes_no_space() -> None:
    expired, loaded = ExpiredNames(), ExpiredNames()
    assert expired.saved() == b""
    expired.add("lone\ud800surrogate")
    expired.add("pay")
    saved = expired.saved()
    assert expired.saved() is saved
    loaded.load(saved)
    assert loaded.may_have("pay")
    assert loaded.saved() is saved
    assert not loaded.may_have("ship")
    loaded.load(b"")
    assert not loaded.may_have("pay")


def test_a_number_is_never_too_low_and_rarely_too_high() -> None:
    numbers, loaded = ExpiredNumbers(), ExpiredNumbers()
    assert numbers.highest("app-1") == -1
    assert numbers.saved() == b""
    for number in range(2_000):
        numbers.note(f"app-{number}", number)
        numbers.note(f"app-{number}", number // 2)
    too_high = 0
    for number in range(2_000):
        highest = numbers.highest(f"app-{number}")
        assert highest >= number
        too_high += highest > number
    assert too_high < 100
    assert len(numbers.saved()) == BYTES
    loaded.load(numbers.saved())
    assert loaded.highest("app-7") == numbers.highest("app-7")
    assert loaded.saved() is numbers.saved()
    loaded.note("app-7", 2**40)
    assert loaded.highest("app-7") == 2**40
    assert numbers.highest("app-7") < 2**40
