"""Texts that must not be seen: they appear in no repr, no error, no pickle and no JSON."""

from __future__ import annotations

import hmac
from typing import NoReturn

HIDDEN = "(hidden)"


class Secret:
    """A text that only ``reveal`` shows."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text, for the code that signs, checks or encrypts with it."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        """Compare in a time that does not tell where two secrets differ."""
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    # A hash of a secret could end in a log, and nothing looks secrets up.
    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled: read it where it is needed")
