"""The fold as a Spark job: evidence is packed, shuffled to its range of half offsets, and folded.

A task packs the rows it reads into a few byte strings, one for each range that they belong to. So
Spark shuffles only some thousand rows, however many transactions there are. The log has its half
messages in the order of their offsets, and most decisions follow soon, so a batch of rows belongs
to one or two ranges. ``docs/adr/0019-the-audit-trusts-records-alone.md`` has the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.pipeline.audit.arrays import HALF, PART, ROW, RUN, SHOWN, Folded, RangeEvidence, Rows
from escrowmq.pipeline.audit.fold import fold
from escrowmq.pipeline.views.facts import BROKER_NAME as BROKER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RANGE_HALVES = 262_144
"""The number of half offsets that are folded together: some 20 MB of evidence."""

PACKED = "broker_name string, range bigint, kind string, packed binary"
FOLDED = (
    "what string, name string, broker_name string, half_offset bigint, head bigint, "
    "message_count bigint, recorded int, other bigint"
)
FINDING, PART_OF, COUNT, OPEN = "finding", "part", "count", "open"

#: By kind: the packed columns, and the DataFrame's names for those that it calls otherwise.
_KINDS: dict[str, tuple[np.dtype[Any], dict[str, str]]] = {
    "halves": (HALF, {"count": "message_count", "total": "message_count", "copy": "is_copy"}),
    "parts": (PART, {"count": "message_count"}),
    "runs": (RUN, {"count": "message_count", "state": "state_code"}),
    "rows": (ROW, {"count": "message_count", "first": "half_offset", "state": "state_code"}),
    "shown": (SHOWN, {"first": "half_offset"}),
}
_DTYPES = {kind: dtype for kind, (dtype, _) in _KINDS.items()}
Batches = Iterator[pa.RecordBatch]


def fold_ranges(
    halves: DataFrame,
    ops: DataFrame,
    transactions: DataFrame | None,
    visible: DataFrame | None,
    known_from: Mapping[str, int],
    *,
    ops_known_from: Mapping[str, int] | None = None,
    also: DataFrame | None = None,
    has_open: bool = False,
    range_halves: int = RANGE_HALVES,
) -> DataFrame:
    """Findings, parts and counts of all ranges (``FOLDED``), and with ``has_open`` what is open.

    ``known_from`` is, by broker, where the log's half messages begin; ``ops_known_from``, if given,
    replaces it for decisions. Evidence that is None is not compared. ``also`` is evidence that is
    packed already (``PACKED``).
    """
    packed = [
        _packed(halves, "halves", range_halves),
        _packed(ops, "runs", range_halves),
    ]
    if transactions is not None:
        packed.append(_packed(transactions, "rows", range_halves))
    if visible is not None:
        packed.append(_packed(visible, "shown", range_halves))
    if also is not None:
        packed.append(also)
    folder = Folder(
        known_from=dict(known_from),
        ops_known_from=dict(ops_known_from or known_from),
        range_halves=range_halves,
        has_rows=transactions is not None,
        has_shown=visible is not None,
        has_open=has_open,
    )
    return (
        reduce(lambda one, other: one.unionByName(other), packed)
        .groupBy(BROKER, "range")
        .applyInArrow(_folds(folder), FOLDED)
    )


def _packed(evidence: DataFrame, kind: str, range_halves: int) -> DataFrame:
    dtype, renamed = _KINDS[kind]
    columns = dict.fromkeys(renamed.get(name, name) for name in dtype.names or ())
    return evidence.select(BROKER, *columns).mapInArrow(packer(kind, range_halves), PACKED)


def packer(kind: str, range_halves: int) -> Callable[[Batches], Batches]:
    """Return a function that packs rows of this kind. It runs in the task that reads them."""

    def pack(batches: Batches) -> Batches:
        for batch in batches:
            for broker in pc.unique(batch.column(BROKER)).to_pylist():
                mine = batch.filter(pc.equal(batch.column(BROKER), broker))
                rows = _structured(mine, kind)
                if kind == "halves":
                    later = rows[rows["first"] != rows["head"]]
                    parts = np.empty(len(later), PART)
                    for name in PART.names or ():
                        parts[name] = later[name]
                    yield _by_range(broker, "parts", parts, parts["head"] // range_halves)
                if "count" in (rows.dtype.names or ()) and kind != "rows":
                    rows = _split(rows, range_halves)
                yield _by_range(broker, kind, rows, rows["first"] // range_halves)

    return pack


def _structured(batch: pa.RecordBatch, kind: str) -> Rows:
    dtype, renamed = _KINDS[kind]
    rows = np.empty(batch.num_rows, dtype)
    for name in dtype.names or ():
        column = batch.column(renamed.get(name, name))
        rows[name] = column.to_numpy(zero_copy_only=False)
    return rows


def _split(rows: Rows, range_halves: int) -> Rows:
    """Cut rows that reach into the next range at its beginning."""
    last = rows["first"] + rows["count"] - 1
    over = rows["first"] // range_halves < last // range_halves
    if not over.any():
        return rows
    pieces = [rows[~over]]
    for row in rows[over]:
        start, end = int(row["first"]), int(row["first"] + row["count"])
        borders = [start, *range(start - start % range_halves + range_halves, end, range_halves)]
        cut = np.repeat(row, len(borders))
        cut["first"] = borders
        cut["count"] = np.diff([*borders, end])
        if "total" in (cut.dtype.names or ()):
            cut["total"][1:] = 0
        pieces.append(cut)
    return np.concatenate(pieces)


def _by_range(broker: str, kind: str, rows: Rows, ranges: Rows) -> pa.RecordBatch:
    """One row for each range."""
    order = np.argsort(ranges, kind="stable")
    numbers, starts = np.unique(ranges[order], return_index=True)
    pieces = np.split(rows[order], starts[1:])
    packed = [piece.tobytes() for piece in pieces[: len(numbers)]]
    return pa.record_batch(
        {
            BROKER: pa.array([broker] * len(numbers), pa.string()),
            "range": pa.array(numbers, pa.int64()),
            "kind": pa.array([kind] * len(numbers), pa.string()),
            "packed": pa.array(packed, pa.binary()),
        }
    )


@dataclass(frozen=True, kw_only=True)
class Folder:
    """Folds one range, in a task that has all evidence of the range."""

    known_from: dict[str, int]
    ops_known_from: dict[str, int]
    range_halves: int
    has_rows: bool
    has_shown: bool
    has_open: bool

    def fold_range(self, key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
        """Fold the range that the key names; ``table`` holds its packed evidence."""
        broker, number = (one.as_py() for one in key)
        pieces: dict[str, list[Rows]] = {kind: [] for kind in _DTYPES}
        for kind, packed in zip(table["kind"].to_pylist(), table["packed"], strict=True):
            pieces[kind].append(np.frombuffer(packed.as_buffer(), _DTYPES[kind]))
        rows = {
            kind: np.concatenate([np.empty(0, _DTYPES[kind]), *some])
            for kind, some in pieces.items()
        }
        base = number * self.range_halves
        folded = fold(
            RangeEvidence(
                base=base,
                width=self.range_halves,
                known_from=self.known_from.get(broker, 0),
                ops_known_from=self.ops_known_from.get(broker, 0),
                halves=rows["halves"],
                parts=rows["parts"],
                runs=rows["runs"],
                rows=rows["rows"] if self.has_rows else None,
                shown=rows["shown"] if self.has_shown else None,
            )
        )
        tables = [_table(broker, *one) for one in _told(base, folded, has_open=self.has_open)]
        return pa.concat_tables(tables)


def _folds(folder: Folder) -> Callable[[tuple[pa.Scalar, ...], pa.Table], pa.Table]:
    """The function that Spark calls: it counts arguments, and ``self`` would be one too many."""

    def fold_range(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
        return folder.fold_range(key, table)

    return fold_range


def _table(broker: str, what: str, names: list[str], columns: Mapping[str, Rows]) -> pa.Table:
    """Rows of one kind (``FOLDED``); columns that are not given hold -1."""
    nothing = np.full(len(names), -1)
    arrays = [pa.array([what] * len(names), pa.string()), pa.array(names, pa.string())]
    arrays.append(pa.array([broker] * len(names), pa.string()))
    arrays += [
        pa.array(columns.get(column, nothing), kind)
        for column, kind in (
            ("half_offset", pa.int64()),
            ("head", pa.int64()),
            ("message_count", pa.int64()),
            ("recorded", pa.int32()),
            ("other", pa.int64()),
        )
    ]
    return pa.Table.from_arrays(arrays, names=[part.split()[0] for part in FOLDED.split(", ")])


def _told(
    base: int, folded: Folded, *, has_open: bool
) -> Iterator[tuple[str, list[str], Mapping[str, Rows]]]:
    """Kind, names and columns of the rows."""
    counts = folded.counts
    at = np.full(len(counts), base)
    yield COUNT, list(counts), {"half_offset": at, "other": np.array(list(counts.values()))}
    parts = folded.parts
    by_request = {"half_offset": parts["first"], "head": parts["head"]}
    by_part = {"message_count": parts["count"], "recorded": parts["state"]}
    yield PART_OF, [""] * len(parts), by_request | by_part
    if has_open:
        some = folded.open
        columns = {"half_offset": some["first"], "head": some["head"]}
        columns |= {"message_count": some["count"], "recorded": some["copy"].astype("i4")}
        yield OPEN, [""] * len(some), columns | {"other": some["total"].astype("i8")}
    for found in folded.found:
        columns = {"half_offset": found.half_offset, "head": found.head}
        columns |= {"message_count": found.message_count, "recorded": found.recorded}
        names = [found.finding.value] * len(found.half_offset)
        yield FINDING, names, columns | {"other": found.other}
