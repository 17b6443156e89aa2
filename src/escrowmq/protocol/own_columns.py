"""Rows of a body by the column, in either form: of rows that came as Arrow none becomes an object.

What was declared holds here as it does for single rows (``own_forms``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from escrowmq.protocol.own_forms import Form, Row, columns_of, decode_rows

Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]


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

    def values(self, name: str) -> list[Any]:
        """Any column, as a list."""
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

    def values(self, name: str) -> list[Any]:
        """Any column."""
        return [getattr(row, name) for row in self._rows]
