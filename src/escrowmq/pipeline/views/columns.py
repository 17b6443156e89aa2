"""The columns of the views, each made from one field of the rows that brokers return.

Users get times as TIMESTAMP columns and states as words. Programs can still read the underlying
numbers if they name them (``columns``): settling, the archive and the audit compute with them. Both
forms come from the same field, and only this module makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.pipeline.source.column_types import TIMESTAMP, timestamps
from escrowmq.pipeline.views import facts
from escrowmq.protocol.native.row_forms import ColumnType, NativeColumn, NativeRow, columns_of
from escrowmq.protocol.native.rows import NO_CHECK_MS
from escrowmq.transaction.states import STATES

_TYPES = {
    ColumnType.TEXT: "string",
    ColumnType.BYTES: "binary",
    ColumnType.BOOL: "boolean",
    ColumnType.INT32: "int",
    ColumnType.INT64: "bigint",
}


def _unchanged(values: pa.Array) -> pa.Array:
    return values


@dataclass(frozen=True)
class ViewColumn:
    """One column of a view."""

    name: str
    #: The SQL name of the type.
    type: str
    is_nullable: bool
    #: The source field of the values: of the broker's rows, or of the range that is read.
    field: str
    make: Callable[[pa.Array], pa.Array] = _unchanged
    #: Whether a read that names no columns includes it.
    is_default: bool = True


@cache
def view_columns(rows: type[NativeRow]) -> tuple[ViewColumn, ...]:
    """The columns of a view of these rows. Columns that a read must name come last."""
    first = (
        NativeColumn(facts.BROKER, ColumnType.TEXT, is_nullable=False),
        NativeColumn(facts.BROKER_NAME, ColumnType.TEXT, is_nullable=False),
        NativeColumn(facts.AS_OF_MS, ColumnType.INT64, is_nullable=False),
    )
    made = [column for field in (*first, *columns_of(rows)) for column in _made_of(field)]
    return tuple(sorted(made, key=lambda column: not column.is_default))


def _made_of(field: NativeColumn) -> list[ViewColumn]:
    name, kind = field.name, _TYPES[field.kind]
    if name in facts.INSTANTS:
        return [
            ViewColumn(facts.INSTANTS[name], TIMESTAMP, field.is_nullable, name, timestamps),
            ViewColumn(name, kind, field.is_nullable, name, is_default=False),
        ]
    if name == facts.STATE:
        return [
            ViewColumn(name, "string", field.is_nullable, name, _labels),
            ViewColumn(facts.STATE_CODE, kind, field.is_nullable, name, is_default=False),
        ]
    if name == facts.WAIT_MS:
        return [ViewColumn(name, kind, is_nullable=True, field=name, make=_waits)]
    return [ViewColumn(name, kind, field.is_nullable, name)]


def _labels(codes: pa.Array) -> pa.Array:
    """States as words. An unknown code, from a newer broker, keeps its number."""
    encoded = codes.dictionary_encode()
    words = [
        STATES[code].label if 0 <= code < len(STATES) else f"state_{code}"
        for code in encoded.dictionary.to_pylist()
    ]
    return pa.array(words, pa.string()).take(encoded.indices)


def _waits(waits_ms: pa.Array) -> pa.Array:
    """The waits until the next checks; NULL if no check is planned."""
    is_planned = pc.less(waits_ms, NO_CHECK_MS)
    return pc.if_else(is_planned, waits_ms, pa.scalar(None, pa.int64()))
