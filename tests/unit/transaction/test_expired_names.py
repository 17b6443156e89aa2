"""A filter of expired names forgets none, and its size does not depend on how many there are."""

from __future__ import annotations

import pytest

from escrowmq.transaction.expired_names import BYTES, ExpiredNames


def test_a_name_that_was_added_is_always_found() -> None:
    expired = ExpiredNames()
    assert not expired.may_have("pay")
    for number in range(1_000):
        expired.add("app", f"query-{number}")
    assert all(expired.may_have("app", f"query-{number}") for number in range(1_000))
    # What it is made of is part of the name.
    assert not expired.may_have("appquery-1")
    assert not expired.may_have("query-1", "app")


@pytest.mark.parametrize(
    ("names", "mistaken_max", "bytes_max"),
    [(1_000, 1, 5_000), (10_000, 20, 50_000), (100_000, 500, BYTES + 1_024)],
)
def test_few_names_are_mistaken_and_its_size_is_bounded(
    names: int, mistaken_max: int, bytes_max: int
) -> None:
    expired, loaded = ExpiredNames(), ExpiredNames()
    for number in range(names):
        expired.add(f"group-{number}")
    mistaken = sum(expired.may_have(f"other-{number}") for number in range(10_000))
    assert mistaken <= mistaken_max
    assert len(expired.packed()) <= bytes_max
    loaded.load(expired.packed())
    assert all(loaded.may_have(f"group-{number}") for number in range(names))
    loaded.add("group-0")
    assert loaded.packed() == expired.packed()


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
