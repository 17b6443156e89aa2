"""Columns of many rows, without an object for each value.

Whoever answers with thousands of rows gives one of these in place of a list.  Both forms of rows
know them: Arrow takes them as they are, and ``tolist`` is for MessagePack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]


class Named:
    """Texts of which there are few: a number for each row, and what it stands for."""

    __slots__ = ("names", "numbers")

    def __init__(self, numbers: Numbers, names: Sequence[str | None]) -> None:
        self.numbers = numbers
        self.names = names

    def tolist(self) -> list[str | None]:
        """The values."""
        names = self.names
        return [names[number] for number in self.numbers.tolist()]

    def __len__(self) -> int:
        return len(self.numbers)


class Texts:
    """Texts as UTF-8; None for none."""

    __slots__ = ("encoded",)

    def __init__(self, encoded: Sequence[bytes | None]) -> None:
        self.encoded = encoded

    def tolist(self) -> list[str | None]:
        """The values."""
        return [None if one is None else one.decode() for one in self.encoded]

    def __len__(self) -> int:
        return len(self.encoded)


class Sparse:
    """Numbers, some of which are not there."""

    __slots__ = ("is_missing", "numbers")

    def __init__(self, numbers: Numbers, is_missing: Numbers) -> None:
        self.numbers = numbers
        self.is_missing = is_missing

    def tolist(self) -> list[int | None]:
        """The values."""
        pairs = zip(self.numbers.tolist(), self.is_missing.tolist(), strict=True)
        return [None if is_missing else number for number, is_missing in pairs]

    def __len__(self) -> int:
        return len(self.numbers)


def compact(numbers: Numbers) -> tuple[Numbers, list[int]]:
    """These numbers, none below 0 and none huge, as positions in a list of those that occur."""
    seen = np.flatnonzero(np.bincount(numbers, minlength=1))
    positions = np.zeros(int(seen[-1]) + 1 if len(seen) else 1, dtype=np.int32)
    positions[seen] = np.arange(len(seen))
    return positions[numbers], seen.tolist()
