"""Rows of a body by the column, in either form: of rows that came as Arrow none becomes an object.

What was declared holds here as it does for single rows (``own_forms``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from escrowmq.model.message_columns import Numbers, Slices
from escrowmq.protocol.own_forms import Form, Row, columns_of, decode_rows


class BodyColumns(Protocol):
    """The rows of one body."""

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def numbers(self, name: str) -> Numbers:
        """A column of numbers."""
        ...

    def codes(self, name: str, texts: Sequence[str]) -> Numbers:
        """A column of texts: which of these each is, by its place, and -1 for none of them."""
        ...

    def distinct(self, name: str) -> tuple[list[str], Numbers]:
        """A column of texts: the different ones, and which of them each is."""
        ...

    def values(self, name: str) -> list[Any]:
        """Any column, as a list."""
        ...

    def slices(self, name: str) -> Slices:
        """A column of bytes or texts, without a null in it."""
        ...


def decode_columns(
    form: Form, kind: type[Row], version: int, body: bytes, *, rows_max: int
) -> BodyColumns:
    """The rows in a body; refused unless they are exactly what was declared."""
    if form is Form.ARROW:
        from escrowmq.protocol import own_arrow

        return own_arrow.ArrowColumns(
            own_arrow.decode_batch(columns_of(kind), version, body, rows_max=rows_max)
        )
    return RowColumns(decode_rows(form, kind, version, body, rows_max=rows_max))


class RowColumns:
    """Rows that came one by one."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def numbers(self, name: str) -> Numbers:
        """A column of numbers."""
        return np.array(self.values(name), dtype=np.int64)

    def codes(self, name: str, texts: Sequence[str]) -> Numbers:
        """Which of these texts each is."""
        places = {text: at for at, text in enumerate(texts)}
        return np.array([places.get(one, -1) for one in self.values(name)], dtype=np.int64)

    def distinct(self, name: str) -> tuple[list[str], Numbers]:
        """The different texts of a column, and which of them each is."""
        texts = list(dict.fromkeys(self.values(name)))
        return texts, self.codes(name, texts)

    def values(self, name: str) -> list[Any]:
        """Any column."""
        return [getattr(row, name) for row in self._rows]

    def slices(self, name: str) -> Slices:
        """A column of bytes or texts."""
        held = [one.encode() if isinstance(one, str) else one for one in self.values(name)]
        offsets = np.zeros(len(held) + 1, dtype=np.int64)
        np.cumsum([len(one) for one in held], out=offsets[1:])
        return Slices(b"".join(held), offsets)
