"""Compares the undecided requests of the records with the state store that the operator chose.

The join compares records with the broker's state table. With ``transaction.state_store`` = `mapped`
or `sql`, the undecided transactions are also in files or in a database, which no other request
shows. A round reads them all from there. Then it looks at the state table and at the decisions of
the meantime, so a transaction that went on is not a difference.

If the state store is away, or has not followed the log as far as the round has read, the round says
so, and keeps the differences of the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import EscrowError, Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.pipeline.audit.arrays import NONE, PARKED, UNDECIDED, Rows
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.compare.checkpoint import Difference
from escrowmq.pipeline.compare.folding import FoldedPart
from escrowmq.pipeline.compare.judging import OF_STATE_STORE
from escrowmq.pipeline.compare.looking import SecondLook, look_again
from escrowmq.pipeline.compare.planning import BrokerPart
from escrowmq.protocol.native.comparisons import ListStateStoreAnswer, ListStateStoreHeader
from escrowmq.protocol.native.requests import NativeCode

if TYPE_CHECKING:
    from collections.abc import Iterator

log = event_log(__name__)

COMPARED = "compared"
IS_TABLE = "is_table"
BEHIND = "behind"
_OPEN = (UNDECIDED, PARKED)


class UndecidedRows(NamedTuple):
    """Undecided rows of a state store, by half offset, and which stand for transactions."""

    half_offsets: Rows
    are_heads: Rows


def compare_state_store(
    part: BrokerPart, folded: FoldedPart, *, found_at_ms: int
) -> tuple[str, tuple[Difference, ...]]:
    """What the round says about the state store, and the differences that hold now."""
    if part.pin.status.state_store in {"", "table"}:
        return IS_TABLE, ()
    before = () if part.before is None else part.before.differences
    known = {one.half_offset: one for one in before if FindingName(one.finding) in OF_STATE_STORE}
    if part.is_behind:
        # The records that decide what the state store no longer has may come in the next round.
        return BEHIND, tuple(known.values())
    end = compared_to(part)
    try:
        held = held_rows(part, end)
    except EscrowError as error:
        log.warning("state_store_not_compared", extra={"broker": part.name, "why": str(error)})
        return error.code, tuple(known.values())
    candidates = [
        known.get(one.half_offset, one)
        for one in differing(folded.open, held, end=end, found_at_ms=found_at_ms)
    ]
    if not candidates:
        return COMPARED, ()
    look = look_again(part, candidates)
    found = (judge_held(one, look) for one in candidates)
    return COMPARED, tuple(one for one in found if one is not None)


def compared_to(part: BrokerPart) -> int:
    """Below this half offset, the round knows every undecided request."""
    before = part.before
    is_full = before is not None and before.left_out
    return before.left_out_from if before is not None and is_full else part.half_end


def held_rows(part: BrokerPart, end: int) -> UndecidedRows:
    """The undecided rows of the state store below this half offset.

    Raises:
        Unavailable: The state store is away, or has not followed as far as the round has read.
    """
    rows, are_heads = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.bool_)]
    header = ListStateStoreHeader(end=end)
    with NativeCalls(part.pin.address) as calls:
        for page in calls.arrow_pages(NativeCode.LIST_STATE_STORE, header):
            told = page.header
            assert isinstance(told, ListStateStoreAnswer)
            if told.log_offset < part.pin.log_end:
                raise Unavailable("state_store_behind", "it has not followed the log this far")
            rows.append(page.batch.column("half_offset").to_numpy(zero_copy_only=False))
            are_heads.append(page.batch.column("is_head").to_numpy(zero_copy_only=False))
    return UndecidedRows(np.concatenate(rows), np.concatenate(are_heads))


def differing(
    open_requests: Rows, held: UndecidedRows, *, end: int, found_at_ms: int
) -> Iterator[Difference]:
    """Candidates: what is undecided only by the records, or only in the state store."""
    is_head = (open_requests["first"] == open_requests["head"]) & (open_requests["first"] < end)
    heads = open_requests[is_head]
    for row in heads[~np.isin(heads["first"], held.half_offsets[held.are_heads])]:
        yield Difference(
            finding=FindingName.STATE_STORE_LACKS.value,
            half_offset=int(row["first"]),
            head=int(row["head"]),
            message_count=int(row["total"]),
            recorded=UNDECIDED,
            listed=NONE,
            found_at_ms=found_at_ms,
        )
    for half_offset in held.half_offsets[~are_in(held.half_offsets, open_requests)].tolist():
        yield Difference(
            finding=FindingName.STATE_STORE_KEEPS.value,
            half_offset=half_offset,
            head=half_offset,
            message_count=1,
            recorded=NONE,
            listed=UNDECIDED,
            found_at_ms=found_at_ms,
        )


def are_in(half_offsets: Rows, requests: Rows) -> Rows:
    """Which half messages are parts of these requests, which are in the order of their offsets."""
    if not len(requests):
        return np.zeros(len(half_offsets), dtype=np.bool_)
    at = np.searchsorted(requests["first"], half_offsets, side="right") - 1
    request = requests[at]
    found: Rows = (at >= 0) & (half_offsets < request["first"] + request["total"])
    return found


def judge_held(candidate: Difference, look: SecondLook) -> Difference | None:
    """The difference, if the state table contradicts the state store as the records do.

    A state table that contradicts the records has a finding of its own.
    """
    row = look.rows.get(candidate.half_offset)
    is_open = row is not None and row.state in _OPEN
    if candidate.finding == FindingName.STATE_STORE_LACKS.value:
        return candidate if is_open and candidate.half_offset not in look.went_on else None
    # The join has compared this row, so the state table has what the records say.
    return None if is_open else replace(candidate, recorded=NONE if row is None else row.state)
