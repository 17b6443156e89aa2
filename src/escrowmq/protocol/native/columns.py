"""Access to a body's rows by column, in either form, without an object per row for Arrow.

The declared columns and limits apply as for single rows (``row_forms.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from escrowmq.model.message_columns import Numbers, Slices
from escrowmq.protocol.native.row_forms import NativeRow, RowForm, columns_of, decode_rows


class BodyColumns(Protocol):
    """The rows of one body, by column."""

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def numbers(self, name: str) -> Numbers:
        """Return a column of numbers."""
        ...

    def codes(self, name: str, texts: Sequence[str]) -> Numbers:
        """Return each row's position in ``texts``, or -1 if its text is not among them."""
        ...

    def distinct(self, name: str) -> tuple[list[str], Numbers]:
        """Return the distinct texts of a column, and each row's position among them."""
        ...

    def values(self, name: str) -> list[Any]:
        """Return any column as a list."""
        ...

    def slices(self, name: str) -> Slices:
        """Return a column of bytes or texts that has no nulls."""
        ...


def decode_columns(
    form: RowForm, kind: type[NativeRow], version: int, body: bytes, *, rows_max: int
) -> BodyColumns:
    """Decode the rows of a body; refuse them unless they match the declaration exactly."""
    if form is RowForm.ARROW:
        from escrowmq.protocol.native import arrow

        return arrow.ArrowColumns(
            arrow.decode_batch(columns_of(kind), version, body, rows_max=rows_max)
        )
    return RowColumns(decode_rows(form, kind, version, body, rows_max=rows_max))


class RowColumns:
    """Columns of rows that are objects."""

    def __init__(self, rows: Sequence[NativeRow]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def numbers(self, name: str) -> Numbers:
        """Return a column of numbers."""
        return np.array(self.values(name), dtype=np.int64)

    def codes(self, name: str, texts: Sequence[str]) -> Numbers:
        """Return each row's position in ``texts``, or -1."""
        places = {text: at for at, text in enumerate(texts)}
        return np.array([places.get(one, -1) for one in self.values(name)], dtype=np.int64)

    def distinct(self, name: str) -> tuple[list[str], Numbers]:
        """Return the distinct texts of a column, and each row's position among them."""
        texts = list(dict.fromkeys(self.values(name)))
        return texts, self.codes(name, texts)

    def values(self, name: str) -> list[Any]:
        """Return any column as a list."""
        return [getattr(row, name) for row in self._rows]

    def slices(self, name: str) -> Slices:
        """Return a column of bytes or texts."""
        held = [one.encode() if isinstance(one, str) else one for one in self.values(name)]
        offsets = np.zeros(len(held) + 1, dtype=np.int64)
        np.cumsum([len(one) for one in held], out=offsets[1:])
        return Slices(b"".join(held), offsets)
