"""Columns for answers with thousands of rows, without a Python object per value.

The broker passes them in place of lists. Both forms of rows accept them: Arrow uses them directly,
and MessagePack calls ``tolist``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]


@dataclass(slots=True, eq=False)
class Named:
    """Text column with few distinct values: a number per row, and the name of each number."""

    numbers: Numbers
    names: Sequence[str | None]

    def tolist(self) -> list[str | None]:
        """Return the values as a list."""
        names = self.names
        return [names[number] for number in self.numbers.tolist()]

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(slots=True, eq=False)
class Texts:
    """Text column of UTF-8 bytes, with None for a missing value."""

    encoded: Sequence[bytes | None]

    def tolist(self) -> list[str | None]:
        """Return the values as a list."""
        return [None if one is None else one.decode() for one in self.encoded]

    def __len__(self) -> int:
        return len(self.encoded)


@dataclass(slots=True, eq=False)
class Sparse:
    """Number column with missing values."""

    numbers: Numbers
    is_missing: Numbers

    def tolist(self) -> list[int | None]:
        """Return the values as a list."""
        pairs = zip(self.numbers.tolist(), self.is_missing.tolist(), strict=True)
        return [None if is_missing else number for number, is_missing in pairs]

    def __len__(self) -> int:
        return len(self.numbers)


def compact(numbers: Numbers) -> tuple[Numbers, list[int]]:
    """Return each number's position in the list of distinct numbers, and that list.

    The numbers must not be negative, and the largest one bounds the memory this needs.
    """
    seen = np.flatnonzero(np.bincount(numbers, minlength=1))
    positions = np.zeros(int(seen[-1]) + 1 if len(seen) else 1, dtype=np.int32)
    positions[seen] = np.arange(len(seen))
    return positions[numbers], seen.tolist()
