"""One round as a Spark job: joins new half and op records and the open requests with the store.

RocketMQ's check service pulls op messages into a map, and skips the half messages in it. Here the
same is one join of sets, by ranges of half offsets (``audit/ranges.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.audit.arrays import HALF, Rows
from escrowmq.pipeline.audit.ranges import (
    COUNT,
    FINDING,
    OPEN,
    PART_OF,
    RANGE_HALVES,
    fold_ranges,
    packer,
)
from escrowmq.pipeline.audit.views import FORMAT, Views
from escrowmq.pipeline.compare.planning import BrokerPart
from escrowmq.pipeline.views.facts import (
    BROKER_NAME,
    FIRST,
    HALF_OFFSET,
    HEAD,
    IS_COPY,
    MESSAGE_COUNT,
    STATE_CODE,
)
from escrowmq.pipeline.views.options import RANGE_ROWS
from escrowmq.protocol.native.headers import ListTransactionsHeader, PlanHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CANDIDATE = np.dtype(
    [("first", "<i8"), ("head", "<i8"), ("count", "<i8"), ("recorded", "<i4"), ("other", "<i8")]
)
"""What the join found: a request, its state by the records, and what the other side has."""

NARROWER = 8
"""How much narrower the ranges of a round are that continues."""

UNDECIDED_STATES = f"{State.PREPARED.label},{State.PARKED.label}"
_ROW = [HALF_OFFSET, STATE_CODE, MESSAGE_COUNT]
_COLUMNS = ("half_offset", "head", "message_count", "recorded", "other")


@dataclass(frozen=True)
class FoldedPart:
    """One broker's result."""

    #: Candidates by the name of the finding.
    candidates: dict[str, Rows]
    #: Undecided requests (``HALF``), in the order of their offsets.
    open: Rows
    #: Requests of transactions with several requests (``CANDIDATE``).
    parts: Rows
    counts: dict[str, int]


def fold_parts(
    spark: SparkSession, parts: Sequence[BrokerPart], *, range_halves: int = RANGE_HALVES
) -> dict[str, FoldedPart]:
    """Join the records of these brokers, and compare; results by broker name."""
    views = Views(spark, [part.pin for part in parts])
    if not any(part.begun for part in parts):
        # The open requests are spread over the history, and each range costs its width.
        range_halves = max(range_halves // NARROWER, 1)
    older = [batch for part in parts for batch in older_evidence(part, range_halves)]
    folded = fold_ranges(
        views.halves(FIRST, HEAD, MESSAGE_COUNT, IS_COPY).where(_is_new(parts)),
        views.ops(FIRST, MESSAGE_COUNT, STATE_CODE),
        _listed(spark, parts),
        None,
        {
            part.name: part.pin.known_from if part.before is None else part.half_start
            for part in parts
        },
        ops_known_from={part.name: part.pin.known_from for part in parts},
        also=spark.createDataFrame(pa.Table.from_batches(older)) if older else None,
        has_open=True,
        range_halves=range_halves,
    ).toArrow()
    return {part.name: _of_broker(folded, part.name) for part in parts}


def _is_new(parts: Sequence[BrokerPart]) -> Column:
    """Whether the request is not older than the last round's.

    A copy of an older one is open, and the checkpoint has it, or it was decided and waits for its
    delivery time.
    """
    starts = (
        F.when(F.col(BROKER_NAME) == part.name, F.lit(part.half_start).cast("bigint"))
        for part in parts
    )
    is_new: Column = F.col(FIRST) >= F.coalesce(*starts)
    return is_new


def older_evidence(part: BrokerPart, range_halves: int) -> Iterator[pa.RecordBatch]:
    """The open requests of the checkpoint, and the older undecided rows of the store, packed.

    They are few beside the records, so the driver packs them, which spares a job its tasks.
    """
    if part.before is None:
        return
    rows = part.before.open_rows
    requests = {
        FIRST: pa.array(rows["first"], pa.int64()),
        HEAD: pa.array(rows["head"], pa.int64()),
        MESSAGE_COUNT: pa.array(rows["count"], pa.int64()),
        IS_COPY: pa.array(rows["copy"] == 1, pa.bool_()),
    }
    batches = [("halves", pa.record_batch(requests))]
    batches += [("rows", page.rename_columns(_ROW)) for page in undecided_rows(part)]
    for kind, batch in batches:
        if batch.num_rows:
            names = pa.array([part.name] * batch.num_rows, pa.string())
            named = pa.RecordBatch.from_arrays(
                [names, *batch.columns], names=[BROKER_NAME, *batch.schema.names]
            )
            yield from packer(kind, range_halves)(iter([named]))


def undecided_rows(part: BrokerPart) -> Iterator[pa.RecordBatch]:
    """The undecided rows of the state store below the new half messages."""
    with NativeCalls(part.pin.address) as calls:
        plan = PlanHeader(what="transactions", weight=RANGE_ROWS)
        for planned in calls.call(NativeCode.PLAN_RANGES, plan).rows:
            header = ListTransactionsHeader(
                start=planned.start,
                end=min(planned.end, part.half_start),
                states=UNDECIDED_STATES,
                columns="half_offset,state,message_count",
            )
            if header.start < header.end:
                for page in calls.arrow_pages(NativeCode.LIST_TRANSACTIONS, header):
                    yield page.batch


def _listed(spark: SparkSession, parts: Sequence[BrokerPart]) -> DataFrame:
    """The state store's rows of the new half messages."""
    addresses = ",".join(part.pin.address for part in parts)
    reader = spark.read.format(FORMAT).option("view", "transactions").option("broker", addresses)
    columns = f"{BROKER_NAME},{HALF_OFFSET},{MESSAGE_COUNT},{STATE_CODE}"
    starts = json.dumps({part.name: part.half_start for part in parts})
    ends = json.dumps({part.name: part.half_end for part in parts})
    reader = reader.option("columns", columns)
    return reader.option("startOffset", starts).option("endOffset", ends).load()


def _of_broker(folded: pa.Table, name: str) -> FoldedPart:
    mine = folded.filter(pc.equal(folded["broker_name"], name))

    def of_kind(what: str) -> pa.Table:
        return mine.filter(pc.equal(mine["what"], what))

    found = of_kind(FINDING)
    names = pc.unique(found["name"]).to_pylist()
    counts: dict[str, int] = {}
    told = of_kind(COUNT)
    for count, number in zip(told["name"].to_pylist(), told["other"].to_pylist(), strict=True):
        counts[count] = counts.get(count, 0) + number
    return FoldedPart(
        candidates={one: _candidates(found.filter(pc.equal(found["name"], one))) for one in names},
        open=whole_requests(_candidates(of_kind(OPEN))),
        parts=_candidates(of_kind(PART_OF)),
        counts=counts,
    )


def _candidates(table: pa.Table) -> Rows:
    rows = np.empty(table.num_rows, CANDIDATE)
    for field, column in zip(CANDIDATE.names or (), _COLUMNS, strict=True):
        rows[field] = table[column].to_numpy()
    return rows


def whole_requests(pieces: Rows) -> Rows:
    """Requests from the pieces into which ranges cut them.

    In these rows ``recorded`` says whether it is a copy, and ``other`` is the request's whole
    count, which only its first piece has.
    """
    pieces = np.sort(pieces, order="first")
    ends = np.concatenate([[-1], (pieces["first"] + pieces["count"])[:-1]])
    # A piece whose beginning is decided belongs to a finding, not to an open request.
    pieces = pieces[(pieces["other"] > 0) | (pieces["first"] == ends[: len(pieces)])]
    at = np.flatnonzero(pieces["other"] > 0)
    rows = np.empty(len(at), HALF)
    if not len(at):
        return rows
    rows["first"], rows["head"] = pieces["first"][at], pieces["head"][at]
    rows["count"] = np.add.reduceat(pieces["count"], at)
    rows["total"], rows["copy"] = pieces["other"][at], pieces["recorded"][at]
    return rows
