"""The fixed records of a mapped file, and those of its sidecar.

A record has the fields of RocketMQ 3.1.4's table. They sum to 24 bytes of its 28; here the other 4
are a check word, so that a torn record is recognized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from escrowmq.store.disk.rows import Rows, check_words
from escrowmq.transaction.state_store import are_held
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from escrowmq.transaction.records import NamedOrigin

RECORD = np.dtype(
    [
        ("log_offset", "<i8"),
        ("size", "<u4"),
        ("stored_at_s", "<u4"),
        ("group_hash", "<u4"),
        ("state", "<u4"),
        ("check", "<u4"),
    ]
)
"""One half message; 28 bytes. A record of zeros is empty."""

CHECKS = np.dtype(
    [
        ("next_at_ms", "<i8"),
        ("op_offset", "<i8"),
        ("checks_sent", "<u2"),
        # Whether the half message is the head of an undecided transaction.
        ("is_head", "<u2"),
        ("check", "<u4"),
    ]
)
"""What a record has no room for; 24 bytes."""

assert (RECORD.itemsize, CHECKS.itemsize) == (28, 24)

#: RocketMQ's codes of a transaction's state; the last one is ours.
CODES = {State.PREPARED: 4, State.COMMITTED: 8, State.ROLLED_BACK: 12, State.PARKED: 16}
EMPTY = 0
PREPARED, PARKED = CODES[State.PREPARED], CODES[State.PARKED]
_CODE_OF = np.array([CODES[state] for state in State], dtype=np.uint32)
_STATE_OF = np.zeros(max(CODES.values()) + 1, dtype=np.uint8)
for _state, _code in CODES.items():
    _STATE_OF[_code] = _state


def codes(states: Rows) -> Rows:
    """Return the codes of these states."""
    found: Rows = _CODE_OF[states]
    return found


def states(found: Rows) -> Rows:
    """Return the states that these codes stand for."""
    known: Rows = _STATE_OF[found]
    return known


def are_open(found: Rows) -> Rows:
    """Return which codes stand for undecided states."""
    is_open: Rows = (found == PREPARED) | (found == PARKED)
    return is_open


def packed(rows: Rows, origins: Mapping[int, NamedOrigin]) -> tuple[Rows, Rows]:
    """Return the records of these rows, and their records in the sidecar."""
    records = np.zeros(len(rows), dtype=RECORD)
    records["log_offset"] = rows["log_offset"]
    records["size"] = rows["size"]
    records["stored_at_s"] = rows["stored_at_ms"] // 1_000
    records["state"] = codes(rows["state"])
    numbers, at = np.unique(rows["origin"], return_inverse=True)
    hashes = [crc32(origins[one].group.encode()) for one in numbers.tolist()]
    if hashes:
        records["group_hash"] = np.array(hashes, dtype=np.uint32)[at]
    records["check"] = check_words(records)
    return records, packed_checks(rows)


def packed_checks(rows: Rows) -> Rows:
    """Return the records of the sidecar for these rows."""
    checks = np.zeros(len(rows), dtype=CHECKS)
    for name in ("next_at_ms", "op_offset", "checks_sent"):
        checks[name] = rows[name]
    checks["is_head"] = are_held(rows)
    checks["check"] = check_words(checks)
    return checks


def are_torn(records: Rows) -> Rows:
    """Return which records are neither intact nor empty."""
    words = np.ascontiguousarray(records)
    is_empty = ~words.view(np.uint32).reshape(len(words), -1).any(axis=1)
    torn: Rows = (words["check"] != check_words(words)) & ~is_empty
    return torn
