"""The second look at what a round found: which candidates are differences.

The broker keeps working while a round reads, so the state store is newer than the records that were
read. The second look reads the store's rows of the candidates again, and then the decisions of the
meantime. A transaction that went on is not a difference. Differences of earlier rounds get the same
look, and end when records and store agree.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from escrowmq.pipeline.audit.arrays import COMMITTED, NONE, PARKED, ROLLED_BACK, UNDECIDED, Rows
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.compare.checkpoint import Difference
from escrowmq.pipeline.compare.folding import CANDIDATE, FoldedPart
from escrowmq.pipeline.compare.looking import SecondLook, StoreRow, drop_settled, look_again
from escrowmq.pipeline.compare.planning import BrokerPart

OF_RECORDS = frozenset(
    {
        FindingName.DECIDED_TWICE,
        FindingName.DECIDED_BOTH_WAYS,
        FindingName.DECIDED_IN_PART,
        FindingName.HALF_STORED_TWICE,
        FindingName.OP_WITHOUT_HALF,
    }
)
"""Findings in records alone. Records do not change, so they end only with the records."""
OF_STATE_STORE = frozenset({FindingName.STATE_STORE_LACKS, FindingName.STATE_STORE_KEEPS})
"""Findings in ``mapped`` or ``sql``, which each round compares anew (``state_stores.py``)."""
_OPEN = (UNDECIDED, PARKED)
_DECIDED = (COMMITTED, ROLLED_BACK)


def differences_of(
    part: BrokerPart, folded: FoldedPart, *, found_at_ms: int
) -> tuple[Difference, ...]:
    """The differences that hold now: new ones and those of earlier rounds."""
    before = () if part.before is None else part.before.differences
    folded = drop_settled(part, folded)
    candidates = [
        Difference(
            finding=name,
            half_offset=int(row["first"]),
            head=int(row["head"]),
            message_count=int(row["count"]),
            recorded=int(row["recorded"]),
            listed=int(row["other"]),
            found_at_ms=found_at_ms,
        )
        for name, row in _candidates(part, folded)
    ]
    # The open requests are compared anew in each round.
    candidates += [one for one in before if _needs_look(one) and not _is_gone(one, part)]
    if not candidates:
        return ()
    look = look_again(part, candidates)
    held = {one.half_offset: one for one in before}
    found: dict[tuple[str, int], Difference] = {}
    for candidate in candidates:
        judged = judge(candidate, look, half_start=part.half_start)
        if judged is not None:
            earlier = held.get(judged.half_offset, judged)
            key = (judged.finding, judged.half_offset)
            found.setdefault(key, _known_since(judged, earlier))
    return tuple(found.values())


def _needs_look(one: Difference) -> bool:
    return one.recorded != UNDECIDED and FindingName(one.finding) not in OF_STATE_STORE


def _is_gone(one: Difference, part: BrokerPart) -> bool:
    """Whether retention has deleted the records that the finding is about."""
    is_of_records = FindingName(one.finding) in OF_RECORDS
    return is_of_records and one.half_offset < part.pin.status.half_start


def _known_since(judged: Difference, earlier: Difference) -> Difference:
    """The difference as it is now, with what an earlier round knew about it."""
    return msgspec.structs.replace(
        judged,
        found_at_ms=min(judged.found_at_ms, earlier.found_at_ms),
        recorded=judged.recorded if judged.recorded != NONE else earlier.recorded,
    )


def _candidates(part: BrokerPart, folded: FoldedPart) -> Iterator[tuple[str, Rows]]:
    for name, rows in folded.candidates.items():
        is_of_records = FindingName(name) in OF_RECORDS
        for row in rows:
            if part.is_behind and not is_of_records and row["recorded"] == UNDECIDED:
                # Its decision may be among the records that the next round reads.
                continue
            yield name, row
    yield from ((FindingName.DECIDED_IN_PART.value, row) for row in _split(folded.parts))


def _split(parts: Rows) -> Iterator[Rows]:
    """The heads of transactions whose requests have different states."""
    heads, places = np.unique(parts["head"], return_inverse=True)
    low = np.full(len(heads), np.iinfo(np.int32).max)
    high = np.full(len(heads), np.iinfo(np.int32).min)
    np.minimum.at(low, places, parts["recorded"])
    np.maximum.at(high, places, parts["recorded"])
    counts = np.zeros(len(heads), dtype=np.int64)
    np.add.at(counts, places, parts["count"])
    for at in np.flatnonzero(low != high):
        row = np.zeros(1, CANDIDATE)[0]
        row["first"] = row["head"] = heads[at]
        row["count"], row["recorded"], row["other"] = counts[at], NONE, NONE
        yield row


def judge(candidate: Difference, look: SecondLook, *, half_start: int) -> Difference | None:
    """The difference by its name, or None if there is none any more."""
    name = FindingName(candidate.finding)
    if name in OF_RECORDS:
        if name is FindingName.OP_WITHOUT_HALF and candidate.half_offset < half_start:
            # Its half message was decided in an earlier round.
            name = FindingName.DECIDED_TWICE
        return _named(candidate, name, candidate.listed)
    row = look.rows.get(candidate.half_offset)
    has_gone_on = not look.went_on.isdisjoint((candidate.half_offset, candidate.head))
    if candidate.recorded == UNDECIDED:
        return None if has_gone_on else _judge_open(candidate, row)
    if candidate.recorded in _DECIDED:
        return _judge_decided(candidate, row, look)
    return None if row is None or has_gone_on else _judge_row(candidate, row, half_start)


def _judge_open(candidate: Difference, row: StoreRow | None) -> Difference | None:
    is_head = candidate.half_offset == candidate.head
    if row is None:
        return _named(candidate, FindingName.HALF_NOT_IN_TABLE, NONE) if is_head else None
    if row.state in _DECIDED:
        return _named(candidate, FindingName.DECISION_WITHOUT_OP, row.state)
    if not is_head:
        return _named(candidate, FindingName.TABLE_SPLITS, row.state)
    return _judge_count(candidate, row)


def _judge_decided(
    candidate: Difference, row: StoreRow | None, look: SecondLook
) -> Difference | None:
    if row is None:
        is_gone = candidate.half_offset < look.half_start
        return None if is_gone else _named(candidate, FindingName.HALF_NOT_IN_TABLE, NONE)
    if row.state in _OPEN:
        return _named(candidate, FindingName.DECISION_FORGOTTEN, row.state)
    if row.state != candidate.recorded:
        return _named(candidate, FindingName.TABLE_CONTRADICTS, row.state)
    return _judge_count(candidate, row)


def _judge_row(candidate: Difference, row: StoreRow, half_start: int) -> Difference | None:
    """Judge a row for which the round has read no half message."""
    is_open = row.state in _OPEN
    if candidate.finding == FindingName.DECISION_FORGOTTEN.value:
        return candidate if is_open else None
    if is_open and candidate.half_offset < half_start:
        # It is not among the open requests, so an earlier round has read its decision.
        return _named(candidate, FindingName.DECISION_FORGOTTEN, row.state)
    return _named(candidate, FindingName.ROW_WITHOUT_HALF, row.state)


def _judge_count(candidate: Difference, row: StoreRow) -> Difference | None:
    differs = candidate.finding == FindingName.COUNT_DIFFERS.value and row.count == candidate.listed
    return _named(candidate, FindingName.COUNT_DIFFERS, row.count) if differs else None


def _named(candidate: Difference, name: FindingName, listed: int) -> Difference:
    return msgspec.structs.replace(candidate, finding=name.value, listed=listed)
