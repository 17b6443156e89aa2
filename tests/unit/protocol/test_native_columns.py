"""Rows of a body as columns: the same in both forms."""

from __future__ import annotations

import numpy as np
import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.native.columns import BodyColumns, decode_columns
from escrowmq.protocol.native.row_forms import RowForm, encode_rows
from escrowmq.protocol.native.rows import SentRow


def row(topic: str, body: bytes, properties: str = "") -> SentRow:
    return SentRow(
        topic=topic,
        queue_id=len(body),
        body=body,
        properties=properties,
        flag=-1,
        sys_flag=0,
        born_at_ms=2**40,
    )


ROWS = [row("b", b"1"), row("a", b"", "\u00fc"), row("b", b"333", "x")]


def columns(rows: list[SentRow], form: RowForm) -> BodyColumns:
    body = encode_rows(form, SentRow, 1, rows)
    return decode_columns(form, SentRow, 1, body, rows_max=3)


@pytest.mark.parametrize("form", list(RowForm))
def test_columns_hold_what_the_rows_held(form: RowForm) -> None:
    held = columns(ROWS, form)
    assert len(held) == 3
    assert held.numbers("queue_id").tolist() == [1, 0, 3]
    assert held.numbers("born_at_ms").tolist() == [2**40] * 3
    assert held.codes("topic", ["a", "c"]).tolist() == [-1, 0, -1]
    assert held.values("body") == [b"1", b"", b"333"]
    assert held.slices("body").each() == [b"1", b"", b"333"]
    assert held.slices("properties").each() == [b"", "\u00fc".encode(), b"x"]
    assert held.slices("properties").lengths.tolist() == [0, 2, 1]
    names, places = held.distinct("topic")
    assert [names[place] for place in places.tolist()] == ["b", "a", "b"]
    assert sorted(names) == ["a", "b"]


@pytest.mark.parametrize("form", list(RowForm))
def test_no_rows_are_columns_of_none(form: RowForm) -> None:
    held = columns([], form)
    assert len(held) == len(held.slices("body")) == len(held.numbers("flag")) == 0
    assert held.distinct("topic")[0] == []


@pytest.mark.parametrize("form", list(RowForm))
def test_more_rows_than_allowed_are_refused(form: RowForm) -> None:
    with pytest.raises(RequestRefused, match="too_many_rows"):
        columns([*ROWS, *ROWS], form)


def test_a_part_of_an_arrow_batch_is_only_that_part() -> None:
    import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types

    from escrowmq.protocol.native.arrow import ArrowColumns

    batch = pa.record_batch({"body": [b"1", b"22", b"333"], "n": np.arange(3)}).slice(1, 2)
    held = ArrowColumns(batch)
    assert held.slices("body").each() == [b"22", b"333"]
    assert held.numbers("n").tolist() == [1, 2]
