"""What the broker has now about half offsets that a round has doubts about.

The rows of the state store are read first and the decisions of the meantime after them, so every
decision that a row shows is among these, or among the records of the round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.audit.arrays import UNDECIDED, Rows
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.compare.checkpoint import Difference
from escrowmq.pipeline.compare.folding import FoldedPart
from escrowmq.pipeline.compare.planning import BrokerPart
from escrowmq.protocol.native.headers import ListTransactionsHeader, LogRangeHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.status_answer import StatusAnswer
from escrowmq.transaction.states import STATES

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

GAP_MAX = 1_000
"""Rows between two candidates that are read along instead of with a request of their own."""

LISTED_STATES = ",".join(state.label for state in STATES)


@dataclass(frozen=True)
class StoreRow:
    """The state store's row of a request."""

    state: int
    count: int


@dataclass(frozen=True)
class SecondLook:
    """What the broker has now."""

    rows: Mapping[int, StoreRow]
    #: First half offsets and heads of requests that were decided since the round's end.
    went_on: frozenset[int]
    #: Rows below this half offset may have gone with retention.
    half_start: int


def drop_settled(part: BrokerPart, folded: FoldedPart) -> FoldedPart:
    """Leave out requests of earlier rounds that are decided now, as the state store has them.

    A round reads no decided rows of older requests. Very many may be decided at once, so these are
    compared by the column.
    """
    name = FindingName.HALF_NOT_IN_TABLE.value
    rows = folded.candidates.get(name)
    if rows is None:
        return folded
    rows = np.sort(rows, order="first")
    agrees = np.zeros(len(rows), dtype=bool)
    with NativeCalls(part.pin.address) as calls:
        for batch in _pages(calls, rows["first"]):
            offsets, states, _ = _columns(batch)
            at = np.searchsorted(rows["first"], offsets)
            at[at == len(rows)] = 0
            same = (rows["first"][at] == offsets) & (rows["recorded"][at] == states)
            agrees[at[same & (states != UNDECIDED)]] = True
    return replace(folded, candidates={**folded.candidates, name: rows[~agrees]})


def look_again(part: BrokerPart, candidates: Sequence[Difference]) -> SecondLook:
    """Read the store's rows of the candidates, then the decisions since the round's end."""
    rows: dict[int, StoreRow] = {}
    wanted = np.unique(np.array([one.half_offset for one in candidates], dtype=np.int64))
    heads = np.array([one.head for one in candidates], dtype=np.int64)
    with NativeCalls(part.pin.address) as calls:
        for batch in _pages(calls, wanted):
            rows |= _store_rows(batch, wanted)
        status = calls.call(NativeCode.STATUS).header
        assert isinstance(status, StatusAnswer)
        since = LogRangeHeader(
            start=part.pin.log_end, end=status.log_end, columns="first,message_count"
        )
        ops = [page.batch for page in calls.arrow_pages(NativeCode.LIST_OPS, since)]
    decided = _decided(ops, np.union1d(wanted, heads))
    return SecondLook(rows, frozenset(decided), status.half_start)


def _pages(calls: NativeCalls, wanted: Rows) -> Iterator[pa.RecordBatch]:
    """Rows of the state store, with all wanted ones and few others."""
    for start, end in _ranges(wanted):
        header = ListTransactionsHeader(
            start=start,
            end=end,
            states=LISTED_STATES,
            columns="half_offset,state,message_count",
        )
        for page in calls.arrow_pages(NativeCode.LIST_TRANSACTIONS, header):
            yield page.batch


def _columns(batch: pa.RecordBatch) -> tuple[Rows, Rows, Rows]:
    offset, state, count = (
        batch.column(name).to_numpy(zero_copy_only=False)
        for name in ("half_offset", "state", "message_count")
    )
    return offset, state, count


def _ranges(wanted: Rows) -> Iterator[tuple[int, int]]:
    """Yield ranges that cover all wanted offsets of half messages, and few others."""
    if not len(wanted):
        return
    cuts = np.flatnonzero(np.diff(wanted) > GAP_MAX) + 1
    for piece in np.split(wanted, cuts):
        yield int(piece[0]), int(piece[-1]) + 1


def _store_rows(batch: pa.RecordBatch, wanted: Rows) -> dict[int, StoreRow]:
    offsets, states, counts = _columns(batch)
    hits = np.flatnonzero(np.isin(offsets, wanted))
    return {int(offsets[at]): StoreRow(int(states[at]), int(counts[at])) for at in hits}


def _decided(batches: Iterable[pa.RecordBatch], sought: Rows) -> Iterator[int]:
    """Those of the half offsets that these decisions decide."""
    for batch in batches:
        first, count = (
            batch.column(name).to_numpy(zero_copy_only=False) for name in ("first", "message_count")
        )
        order = np.argsort(first, kind="stable")
        at = np.searchsorted(first[order], sought, side="right") - 1
        hits = np.flatnonzero(at >= 0)
        runs = order[at[hits]]
        yield from sought[hits][sought[hits] < first[runs] + count[runs]].tolist()
