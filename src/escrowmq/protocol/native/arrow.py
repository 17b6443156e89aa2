"""Rows as an Arrow IPC stream: one schema, its version in the metadata, then record batches.

The reader does not trust its input. It inspects the head of a batch before the body, and refuses
compressed batches, which could expand to gigabytes, and batches with too many rows. The remaining
data cannot be larger than its frame. Arrow then validates every offset and every text before the
reader uses a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from struct import Struct
from struct import error as StructError  # noqa: N812 - struct.error is a class
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # the same

from escrowmq.model.errors import RequestRefused
from escrowmq.model.message_columns import Numbers, Slices
from escrowmq.protocol.message.limits import too_long
from escrowmq.protocol.native.answer_columns import Named, Sparse, Texts
from escrowmq.protocol.native.row_forms import (
    ColumnType,
    NativeColumn,
    RowColumns,
    rows_malformed,
    too_many_rows,
)

VERSION = b"escrowmq.version"
BATCHES_MAX = 64
"""Most batches in one body: an empty batch costs the reader more than the writer."""

_TYPES = {
    ColumnType.TEXT: pa.utf8(),
    ColumnType.BYTES: pa.binary(),
    ColumnType.BOOL: pa.bool_(),
    ColumnType.INT32: pa.int32(),
    ColumnType.INT64: pa.int64(),
}
#: Exceptions that Arrow raises for malformed input.
_GARBAGE = (pa.ArrowException, ValueError, OSError, MemoryError, OverflowError)

# Field numbers in FlatBuffers tables: Message.header, RecordBatch.length and
# RecordBatch.compression.
_HEADER = 2
_LENGTH = 0
_COMPRESSION = 3

_U16 = Struct("<H").unpack_from
_I32 = Struct("<i").unpack_from
_U32 = Struct("<I").unpack_from
_I64 = Struct("<q").unpack_from


def encode(columns: tuple[NativeColumn, ...], version: int, values: RowColumns) -> bytes:
    """Encode these columns as a stream with one batch."""
    schema = schema_of(columns, version)
    arrays = [
        _array(held, _TYPES[column.kind]) for column, held in zip(columns, values, strict=True)
    ]
    for column, array in zip(columns, arrays, strict=True):
        assert column.is_nullable or not array.null_count, column.name
    return _stream(pa.record_batch(arrays, schema=schema))


def _array(held: Sized, kind: pa.DataType) -> pa.Array:
    """Convert any kind of column to an Arrow array."""
    if isinstance(held, Named):
        return pa.array(held.names, type=kind).take(pa.array(held.numbers))
    if isinstance(held, Texts):
        return pa.array(held.encoded, type=kind)
    if isinstance(held, Sparse):
        return pa.array(held.numbers, type=kind, mask=held.is_missing)
    return pa.array(held, type=kind)


def encode_batch(columns: tuple[NativeColumn, ...], version: int, batch: pa.RecordBatch) -> bytes:
    """Encode a batch whose columns may be in any order; drop columns that are not declared."""
    schema = schema_of(columns, version)
    return _stream(batch.select(schema.names).cast(schema))


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def schema_of(columns: tuple[NativeColumn, ...], version: int) -> pa.Schema:
    """Return the Arrow schema of these columns."""
    return pa.schema(
        [
            pa.field(column.name, _TYPES[column.kind], nullable=column.is_nullable)
            for column in columns
        ],
        metadata={VERSION: str(version).encode()},
    )


def decode(
    columns: tuple[NativeColumn, ...], version: int, body: bytes, *, rows_max: int
) -> list[list[Any]]:
    """Return a list of values for each column."""
    held = decode_batch(columns, version, body, rows_max=rows_max)
    return [array.to_pylist() for array in held.columns]


def decode_batch(
    columns: tuple[NativeColumn, ...], version: int, body: bytes, *, rows_max: int
) -> pa.RecordBatch:
    """Decode all rows into one batch, without copying the body where possible."""
    try:
        batches = list(_batches(columns, version, body, rows_max))
        held = batches[0] if len(batches) == 1 else _joined(batches, schema_of(columns, version))
    except _GARBAGE as error:
        raise rows_malformed(f"Arrow: {error}") from None
    for column, array in zip(columns, held.columns, strict=True):
        if array.null_count and not column.is_nullable:
            raise rows_malformed("no null may be here", column=column.name)
        # The size in bytes is cheap to get, and nearly always within the limit.
        if column.chars_max and array.nbytes > column.chars_max:
            _refuse_long(column, array)
    return held


def _refuse_long(column: NativeColumn, array: pa.Array) -> None:
    chars = pc.utf8_length(array)
    longest = pc.max(chars).as_py() or 0
    if longest > column.chars_max:
        raise too_long(
            column.name, array[pc.index(chars, longest).as_py()].as_py(), column.chars_max
        )


class ArrowColumns:
    """Columns of an Arrow batch; implements ``BodyColumns``."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def numbers(self, name: str) -> Numbers:
        """Return a column of numbers."""
        numbers: Numbers = self._batch.column(name).to_numpy()
        return numbers

    def codes(self, name: str, texts: Sequence[str]) -> Numbers:
        """Return each row's position in ``texts``, or -1."""
        found = pc.index_in(self._batch.column(name), pa.array(texts, pa.utf8()))
        codes: Numbers = found.fill_null(-1).to_numpy()
        return codes

    def distinct(self, name: str) -> tuple[list[str], Numbers]:
        """Return the distinct texts of a column, and each row's position among them."""
        encoded = self._batch.column(name).dictionary_encode()
        places: Numbers = encoded.indices.to_numpy()
        return list(encoded.dictionary.to_pylist()), places.astype(np.int64)

    def values(self, name: str) -> list[Any]:
        """Return any column as a list."""
        return list(self._batch.column(name).to_pylist())

    def slices(self, name: str) -> Slices:
        """Return a column of bytes or texts."""
        column = self._batch.column(name)
        _, offsets, data = column.buffers()
        here = np.frombuffer(offsets, dtype=np.int32)[column.offset :][: len(column) + 1]
        return Slices(b"" if data is None else data.to_pybytes(), here.astype(np.int64))


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if not batches:
        return pa.record_batch([pa.array([], type=field.type) for field in schema], schema=schema)
    return pa.concat_batches(batches)


def _batches(
    columns: tuple[NativeColumn, ...], version: int, body: bytes, rows_max: int
) -> Iterator[pa.RecordBatch]:
    messages = _messages(body)
    first = next(messages, None)
    if first is None or first.type != "schema":
        raise rows_malformed("an Arrow stream starts with its schema")
    schema = pa.ipc.read_schema(first)
    _check_schema(schema, columns, version)
    total = 0
    for number, message in enumerate(messages, 1):
        if message.type != "record batch":
            raise rows_malformed("only record batches may follow the schema", found=message.type)
        if number > BATCHES_MAX:
            raise rows_malformed(f"at most {BATCHES_MAX} batches")
        count, is_compressed = head_of(message.metadata.to_pybytes())
        if is_compressed:
            raise RequestRefused("rows_compressed", "send Arrow batches without compression")
        total += count
        if total > rows_max:
            raise too_many_rows(total, rows_max)
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        yield batch


def _messages(body: bytes) -> Iterator[pa.ipc.Message]:
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(body))
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _check_schema(schema: pa.Schema, columns: tuple[NativeColumn, ...], version: int) -> None:
    stated = (schema.metadata or {}).get(VERSION, b"")
    if stated != str(version).encode():
        raise RequestRefused(
            "schema_version_unknown",
            f"the version is {version}",
            version=stated[:16].decode(errors="replace"),
        )
    wanted = [(column.name, _TYPES[column.kind]) for column in columns]
    if [(field.name, field.type) for field in schema] != wanted:
        raise rows_malformed(
            "the columns must be the declared ones",
            columns=", ".join(f"{name} {kind}" for name, kind in wanted),
        )


def head_of(metadata: bytes) -> tuple[int, bool]:
    """Return a batch's stated number of rows, and whether it is compressed."""
    try:
        message = _U32(metadata, 0)[0]
        at = _field(metadata, message, _HEADER)
        if not at:
            raise rows_malformed("a batch has no head")
        batch = at + _U32(metadata, at)[0]
        length = _field(metadata, batch, _LENGTH)
        count = _I64(metadata, length)[0] if length else 0
        is_compressed = bool(_field(metadata, batch, _COMPRESSION))
    except StructError:
        raise rows_malformed("the head of a batch is cut off") from None
    if count < 0:
        raise rows_malformed("a batch has fewer than no rows")
    return count, is_compressed


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a field in a FlatBuffers table, or 0 if it is absent."""
    described = table - _I32(data, table)[0]
    if described < 0:
        raise rows_malformed("the head of a batch points before it")
    place = 4 + 2 * number
    if place + 2 > _U16(data, described)[0]:
        return 0
    offset: int = _U16(data, described + place)[0]
    return table + offset if offset else 0
