"""Rows in two forms: they survive a round trip, and malformed bodies are refused."""

from __future__ import annotations

import random
import subprocess
import sys

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.model.errors import EscrowError, ProtocolViolation, RequestRefused
from escrowmq.protocol.native import arrow
from escrowmq.protocol.native.row_forms import (
    ColumnType,
    NativeColumn,
    NativeRow,
    RowForm,
    columns_of,
    decode_rows,
    encode_columns,
    encode_rows,
)
from escrowmq.protocol.remoting.headers import Int32, Int64

FORMS = list(RowForm)


class Sample(NativeRow, frozen=True):
    number: Int64
    small: Int32
    name: str
    data: bytes
    is_so: bool
    note: str | None
    count: Int64 | None


ROWS = [
    Sample(
        number=2**63 - 1, small=-(2**31), name="é", data=b"\x00\xff", is_so=True, note="n", count=7
    ),
    Sample(number=-1, small=0, name="", data=b"", is_so=False, note=None, count=None),
]
COLUMNS = columns_of(Sample)
TYPES = arrow.schema_of(COLUMNS, 1)


def written(form: RowForm, rows: list[Sample] = ROWS, version: int = 1) -> bytes:
    return encode_rows(form, Sample, version, rows)


def read(form: RowForm, body: bytes, *, rows_max: int = 100) -> list[Sample]:
    return decode_rows(form, Sample, 1, body, rows_max=rows_max)


def stream(
    schema: pa.Schema = TYPES,
    columns: list[pa.Array] | None = None,
    *,
    batches: int = 1,
    **options: object,
) -> bytes:
    """Return an Arrow stream as another program might write it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as out:
        for _ in range(batches):
            out.write_batch(pa.record_batch(columns or arrays(TYPES), schema=schema))
    return bytes(sink.getvalue().to_pybytes())


def test_the_fields_of_a_row_are_its_columns() -> None:
    assert (
        NativeColumn("number", ColumnType.INT64, is_nullable=False),
        NativeColumn("small", ColumnType.INT32, is_nullable=False),
        NativeColumn("name", ColumnType.TEXT, is_nullable=False),
        NativeColumn("data", ColumnType.BYTES, is_nullable=False),
        NativeColumn("is_so", ColumnType.BOOL, is_nullable=False),
        NativeColumn("note", ColumnType.TEXT, is_nullable=True),
        NativeColumn("count", ColumnType.INT64, is_nullable=True),
    ) == COLUMNS


samples = st.builds(
    Sample,
    number=st.integers(-(2**63), 2**63 - 1),
    small=st.integers(-(2**31), 2**31 - 1),
    name=st.text(st.characters(codec="utf-8")),
    data=st.binary(),
    is_so=st.booleans(),
    note=st.none() | st.text(st.characters(codec="utf-8")),
    count=st.none() | st.integers(-(2**63), 2**63 - 1),
)


@given(rows=st.lists(samples, max_size=30))
def test_both_forms_give_back_what_they_were_given(rows: list[Sample]) -> None:
    for form in FORMS:
        assert read(form, written(form, rows)) == rows


@pytest.mark.parametrize("form", FORMS)
def test_columns_and_rows_are_two_ways_to_say_the_same(form: RowForm) -> None:
    columns = [[getattr(row, column.name) for row in ROWS] for column in COLUMNS]
    assert encode_columns(form, Sample, 1, columns) == written(form)


def test_messagepack_is_an_array_of_arrays_in_the_order_of_the_columns() -> None:
    assert msgspec.msgpack.decode(written(RowForm.MSGPACK))[0] == [
        2**63 - 1,
        -(2**31),
        "é",
        b"\x00\xff",
        True,
        "n",
        7,
    ]


@pytest.mark.parametrize("form", FORMS)
def test_more_rows_than_allowed_are_refused(form: RowForm) -> None:
    assert len(read(form, written(form), rows_max=2)) == 2
    with pytest.raises(RequestRefused, match="too_many_rows"):
        read(form, written(form), rows_max=1)


def test_a_claim_of_many_rows_is_refused_before_they_are_looked_for() -> None:
    for claim in (b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff"):
        with pytest.raises(RequestRefused, match="too_many_rows"):
            read(RowForm.MSGPACK, claim)


ROW: list[object] = [1, 2, "a", b"b", True, None, None]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xdc\x00",
        b"\xdd\x00\x00\x00",
        b"\xc0",
        b"\x80",
        b"\x93\x01\x02",
        b"\x91\x97" + b"\x91" * 5_000,
        *(
            msgspec.msgpack.encode(rows)
            for rows in (
                [1],
                # One column too few, and one too many.
                [ROW[:-1]],
                [[*ROW, 1]],
                # A null in a required column; a wrong type; a number that does not fit.
                [[None, *ROW[1:]]],
                [["1", *ROW[1:]]],
                [[1, 2**31, *ROW[2:]]],
            )
        ),
        msgspec.msgpack.encode([ROW]) + b"\x00",
    ],
)
def test_messagepack_that_is_something_else_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="rows_malformed"):
        read(RowForm.MSGPACK, body)


def test_arrow_of_spark_has_only_nullable_columns_and_is_taken() -> None:
    schema = pa.schema(
        [pa.field(field.name, field.type, nullable=True) for field in TYPES],
        metadata=TYPES.metadata,
    )
    assert read(RowForm.ARROW, stream(schema)) == ROWS


def test_several_batches_are_one_list() -> None:
    assert read(RowForm.ARROW, stream(batches=3)) == ROWS * 3
    with pytest.raises(RequestRefused, match="too_many_rows"):
        read(RowForm.ARROW, stream(batches=3), rows_max=5)
    with pytest.raises(ProtocolViolation, match="at most 64 batches"):
        read(RowForm.ARROW, stream(batches=65), rows_max=1_000)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_batch_is_refused_before_it_is_unpacked(codec: str) -> None:
    columns = [
        pa.array([value] * 100_000, type=field.type)
        for value, field in zip((1, 2, "a" * 1_000, b"", True, None, None), TYPES, strict=True)
    ]
    body = stream(columns=columns, compression=codec)
    before = pa.total_allocated_bytes()
    assert len(body) < 1_000_000
    with pytest.raises(RequestRefused, match="rows_compressed"):
        read(RowForm.ARROW, body, rows_max=2**31)
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("stated", [{}, {"escrowmq.version": "2"}, {"escrowmq.version": b"\xff"}])
def test_another_version_is_refused(stated: dict[str, str]) -> None:
    with pytest.raises(RequestRefused, match="schema_version_unknown"):
        read(RowForm.ARROW, stream(TYPES.with_metadata(stated)))


def arrays(schema: pa.Schema) -> list[pa.Array]:
    return [
        pa.array([getattr(row, field.name) for row in ROWS], type=TYPES.field(field.name).type)
        for field in schema
    ]


def renamed() -> bytes:
    schema = [field.with_name(f"{field.name}_") for field in TYPES]
    return stream(pa.schema(schema, metadata=TYPES.metadata), arrays(TYPES))


def retyped(kind: pa.DataType) -> bytes:
    columns = arrays(TYPES)
    columns[2] = columns[2].cast(kind)
    schema = TYPES.set(2, pa.field("name", kind)).with_metadata(TYPES.metadata)
    return stream(schema, columns)


def without_the_last() -> bytes:
    schema = pa.schema(list(TYPES)[:-1], metadata=TYPES.metadata)
    return stream(schema, arrays(schema))


def with_null() -> bytes:
    columns = arrays(TYPES)
    columns[0] = pa.array([1, None], type=pa.int64())
    schema = TYPES.set(0, pa.field("number", pa.int64())).with_metadata(TYPES.metadata)
    return stream(schema, columns)


def batch_first() -> bytes:
    batch = pa.record_batch(arrays(TYPES), schema=TYPES)
    return bytes(batch.serialize().to_pybytes())


def schema_twice() -> bytes:
    return bytes(TYPES.serialize().to_pybytes()) * 2


@pytest.mark.parametrize(
    "body",
    [
        renamed(),
        retyped(pa.large_utf8()),
        retyped(pa.dictionary(pa.int32(), pa.utf8())),
        without_the_last(),
        with_null(),
        batch_first(),
        schema_twice(),
        stream()[:-40],
        b"",
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        b"garbage",
        bytes(1_000),
    ],
)
def test_arrow_that_is_something_else_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="rows_malformed"):
        read(RowForm.ARROW, body)


def test_a_stream_without_a_batch_has_no_rows() -> None:
    assert read(RowForm.ARROW, bytes(TYPES.serialize().to_pybytes())) == []


@pytest.mark.parametrize("form", FORMS)
def test_garbage_is_refused_and_never_crashes(form: RowForm) -> None:
    """A body with bytes changed, cut out or doubled is read or refused; no other error occurs."""
    chance = random.Random(30_000)
    good = written(form)
    refused = 0
    for _ in range(3_000):
        body = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(body))
            match chance.randrange(3):
                case 0:
                    body[at] = chance.randrange(256)
                case 1:
                    del body[at : at + chance.randint(1, 16)]
                case _:
                    body[at:at] = body[at : at + chance.randint(1, 16)]
        try:
            read(form, bytes(body))
        except EscrowError:
            refused += 1
    assert refused > 1_000


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        bytes(4),
        # Tables that point past the end of the bytes, or before their start.
        b"\xff\xff\xff\x7f",
        b"\x04\x00\x00\x00\xff\xff\xff\x7f",
        b"\x04\x00\x00\x00\x00\x00\x00\x80",
        b"\x04\x00\x00\x00\x7f\x00\x00\x00",
    ],
)
def test_a_cut_off_head_of_a_batch_is_refused(metadata: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="rows_malformed"):
        arrow.head_of(metadata)


def test_the_sdk_needs_no_arrow() -> None:
    code = (
        "import sys, escrowmq.protocol.native.requests;"
        "assert not {'pyarrow', 'numpy'} & sys.modules.keys(), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
