"""Moves a stopped broker's state to another state store, and compares every record.

The log has everything, so the new state store is filled from the core. The files of the old one are
deleted after the comparison; rows in a database stay until its next claim.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from escrowmq.model.errors import StoreCorrupt, Unavailable
from escrowmq.store.mapped.record_file import DIRECTORY as MAPPED
from escrowmq.store.states.choosing import DATABASE, STATE_NAMES, place_of, states_of
from escrowmq.store.states.follower import Follower
from escrowmq.store.states.state_rows import rows_between
from escrowmq.transaction.state_store import StateClaim, StatesLostTrack, are_held, held_from

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.store.store import Store
    from escrowmq.transaction.policy import StateStoreName


@dataclass(frozen=True, slots=True)
class MigratedStates:
    """What a migration did."""

    #: Ranges of half offsets that were compared, and undecided transactions in them.
    parts: int
    undecided: int


def migrate_states(
    store: Store, to: StateStoreName, told: Callable[[int, int], None], url: str = ""
) -> MigratedStates:
    """Fill the state store ``to``, compare it with the core, and delete what others have left.

    The store was opened with the state table. ``told`` gets the ranges done and their number; each
    range counts twice, once for the copy and once for the comparison.
    """
    policy = replace(store.core.policy, state_store=to, state_url=url)
    states = states_of(store, policy)
    if states is None:
        _remove_files(store, keep="")
        told(1, 1)
        return MigratedStates(0, _undecided(store))
    remake = getattr(states, "remake_old_tables", None)
    if remake is not None:
        remake()
    claim = StateClaim(store.core.lineage, place_of(store.disk))
    follower = Follower(store, states, lambda: claim)
    try:
        done = _fill(store, follower, claim, told)
    except StatesLostTrack:
        raise Unavailable(
            "migration_disturbed", "another broker wrote to the database, or it went back"
        ) from None
    finally:
        states.close(None)
    _remove_files(store, keep=to)
    return done


def _fill(
    store: Store, follower: Follower, claim: StateClaim, told: Callable[[int, int], None]
) -> MigratedStates:
    """Copy every range, compare it, and say how far the state store is."""
    states = follower.states
    states.open(claim)
    bases = follower.ranges.all_bases(states.parts_held())
    for done, base in enumerate(bases, 1):
        states.replace(follower.ranges.part(base))
        told(done, 2 * len(bases))
    undecided = 0
    for done, base in enumerate(bases, len(bases) + 1):
        undecided += _compare(follower, base)
        told(done, 2 * len(bases))
    states.close(follower.here(store.table.end))
    return MigratedStates(len(bases), undecided)


def _compare(follower: Follower, base: int) -> int:
    """Compare every record of a range; return the undecided transactions in it."""
    part, states = follower.ranges.part(base), follower.states
    wanted = held_from(part.rows)
    held = states.snapshot(part.first, part.end)
    differing = states.replace(part)
    if differing or not np.array_equal(held, wanted):
        raise StoreCorrupt(
            "migration_differs",
            "the new state store does not hold what was written to it; check its disk",
            half_offset=base,
            records=max(differing, 1),
        )
    return len(wanted)


def _undecided(store: Store) -> int:
    rows = rows_between(store, 0, store.table.end)
    return int(np.count_nonzero(are_held(rows)))


def _remove_files(store: Store, keep: str) -> None:
    """Delete the files of the other state stores in the store's directory."""
    disk = store.disk
    if keep != "mapped":
        for name in disk.list(MAPPED):
            disk.remove(f"{MAPPED}/{name}")
    if keep != "sql":
        for name in STATE_NAMES:
            if name.startswith(DATABASE):
                with suppress(FileNotFoundError):
                    disk.remove(name)
