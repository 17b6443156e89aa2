"""The filter rarely takes a new id for a known one, and never a known one for a new one."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.store.table.id_filter import IdFilter

HASHES = st.integers(0, 2**32 - 1)


def column(hashes: list[int]) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array(hashes, dtype=np.uint32)


@given(st.lists(HASHES, max_size=50), st.lists(HASHES, max_size=50))
def test_the_filter_holds_every_added_id(one_by_one: list[int], at_once: list[int]) -> None:
    ids = IdFilter()
    ids.rebuild([column(at_once), column([])], len(at_once))
    for id_hash in one_by_one:
        ids.add(id_hash)
    assert all(ids.may_hold(id_hash) for id_hash in one_by_one + at_once)
    assert ids.added == len(one_by_one) + len(at_once)


def test_an_empty_filter_holds_nothing() -> None:
    ids = IdFilter()
    assert not any(ids.may_hold(id_hash) for id_hash in (0, 1, 2**32 - 1))


def test_rebuilding_forgets_what_is_not_named() -> None:
    ids = IdFilter()
    ids.add(77)
    ids.rebuild([column([1, 2, 3])], 3)
    assert not ids.may_hold(77)
    assert ids.added == 3


def test_new_ids_are_seldom_taken_for_known_ones_even_when_it_is_full() -> None:
    rng = Random(7)
    ids = IdFilter()
    while not ids.is_full:
        ids.add(rng.getrandbits(32))
    taken = sum(ids.may_hold(rng.getrandbits(32)) for _ in range(2_000))
    assert taken < 200


def test_rebuilding_leaves_room_for_as_many_again() -> None:
    rng = Random(8)
    known = [rng.getrandbits(32) for _ in range(20_000)]
    ids = IdFilter()
    ids.rebuild([column(known)], len(known))
    assert not ids.is_full
    for _ in range(len(known) - 1):
        ids.add(rng.getrandbits(32))
    assert not ids.is_full
    assert all(ids.may_hold(id_hash) for id_hash in known)
