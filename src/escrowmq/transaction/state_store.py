"""Port of the state store, which answers which transactions are undecided and which are due.

The core decides, and recovery rebuilds the core from the log. A state store follows what the log
has flushed: it takes batches of rows with absolute values. So each store can be made again from the
core, and the log wins where the two disagree.

``transaction.state_store`` chooses the adapter: the state table itself, mapped files, or a
database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from escrowmq.model.lineage import Lineage
    from escrowmq.transaction.records import NamedOrigin
    from escrowmq.transaction.table import Numbers

STATE_ROWS = np.dtype(
    [
        ("half_offset", "<i8"),
        ("log_offset", "<i8"),
        ("stored_at_ms", "<i8"),
        ("next_at_ms", "<i8"),
        ("op_offset", "<i8"),
        ("size", "<u4"),
        ("origin", "<u4"),
        ("state", "u1"),
        ("checks_sent", "u1"),
        ("is_head", "?"),
    ]
)
"""Columns of half messages. ``next_at_ms`` is NEVER for all but heads that will be checked."""

HELD_ROWS = np.dtype(
    [
        ("half_offset", "<i8"),
        ("log_offset", "<i8"),
        ("next_at_ms", "<i8"),
        ("state", "u1"),
        ("checks_sent", "u1"),
    ]
)
"""What a state store says about an undecided transaction, by its head."""


def are_undecided(states: Numbers) -> Numbers:
    """Return which of these codes stand for undecided states."""
    found: Numbers = (states == int(State.PREPARED)) | (states == int(State.PARKED))
    return found


def are_held(rows: Numbers) -> Numbers:
    """Return which of these rows are heads of undecided transactions."""
    found: Numbers = are_undecided(rows["state"]) & rows["is_head"]
    return found


def held_from(rows: Numbers) -> Numbers:
    """Return what a state store must say about these rows: their undecided heads, in order."""
    heads = rows[are_held(rows)]
    held = np.zeros(len(heads), dtype=HELD_ROWS)
    for name in HELD_ROWS.names or ():
        held[name] = heads[name]
    return held


class StatePosition(msgspec.Struct, frozen=True):
    """How far a state store has followed: the epoch, the log offset, and the next half offset."""

    epoch: str
    log_offset: int
    rows_end: int


class StateBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that changed up to a position. The rows have the type ``STATE_ROWS``."""

    #: Rows that the state store does not have; some may be decided already.
    appended: Numbers
    #: Rows that are undecided in the state store and were decided since.
    decided: Numbers
    #: Undecided rows whose checks changed, or that were parked or resumed.
    checked: Numbers
    #: The origins of all these rows.
    origins: Mapping[int, NamedOrigin]
    position: StatePosition


class StatePart(msgspec.Struct, frozen=True, kw_only=True):
    """All half messages of a range ``[first, end)`` of half offsets, as the core has them."""

    first: int
    end: int
    rows: Numbers
    origins: Mapping[int, NamedOrigin]
    #: The next half offset of the whole store.
    rows_end: int


class WantedStates(msgspec.Struct, frozen=True, kw_only=True):
    """Undecided transactions of a range that are in one of the states and, if limited, due."""

    first: int = 0
    end: int = NEVER
    limit: int
    states: tuple[State, ...] = (State.PREPARED,)
    #: Limits the scan to heads whose check is due by this time, or ...
    check_at_ms: int | None = None
    #: ... that were stored by this time.
    stored_at_ms: int = -1


class FoundStates(msgspec.Struct, frozen=True):
    """Half offsets, sorted, and the first one of the next page; None if there is none."""

    half_offsets: Numbers
    next_first: int | None


class StateClaim(msgspec.Struct, frozen=True):
    """The broker that opens a state store, and the place from which it runs."""

    lineage: Lineage
    #: Names the data directory: the same text in each start on it, another in a copy of it.
    place: str = ""


class StatesLostTrack(Exception):
    """The state store is not where it was left, so it must be made equal to the core again."""


class StateStore(Protocol):
    """Adapter. Calls may wait for a disk or a database, so the event loop makes none of them.

    Calls raise ``Unavailable`` if a later attempt may succeed, and ``StoreUnusable`` if an operator
    must act. ``StatesLostTrack`` means that batches are lost.
    """

    name: str
    #: Rows of a range that ``replace`` takes.
    part_rows: int

    def open(self, claim: StateClaim) -> StatePosition | None:
        """Take the state store for this broker; return how far it is, or None if it is unknown."""

    def follow(self, batch: StateBatch) -> int:
        """Apply a batch as a whole; return how many decided rows it did not hold as undecided."""

    def replace(self, part: StatePart) -> int:
        """Make a range equal to these rows; return how many records differed."""

    def parts_held(self) -> list[int]:
        """The starts of the ranges in which there are records."""

    def scan(self, wanted: WantedStates) -> FoundStates:
        """Return the rows that are wanted; of a transaction, its head or all of its rows."""

    def low_water(self) -> int:
        """Every half message before this one is decided."""

    def snapshot(self, first: int, end: int) -> Numbers:
        """Return the undecided transactions of a range as ``HELD_ROWS``, sorted."""

    def close(self, position: StatePosition | None) -> None:
        """Release the state store. With a position, everything up to it was followed."""


def rows_of(count: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Return this many blank rows."""
    return np.zeros(count, dtype=STATE_ROWS)
