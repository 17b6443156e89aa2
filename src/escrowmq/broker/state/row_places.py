"""Places of rows in ids that clients send back, and the code that keeps them from being forged.

A place names the epoch, the row in the table of half messages, and the offset in the log. The code
is made with a key that only this broker has, so an id that somebody made up is recognized.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from escrowmq.model.lineage import ROOT

if TYPE_CHECKING:
    from escrowmq.model.lineage import Lineage

KEY_FILE = "ids.key"
"""The file with the key, in the data directory."""
KEY_BYTES = 32
_CODE_BYTES = 12


class RowPlace(NamedTuple):
    """The row that an id names."""

    epoch: str
    half_offset: int
    log_offset: int

    def text(self) -> str:
        """Return the place as ids have it."""
        return f"{self.epoch}.{self.half_offset:x}.{self.log_offset:x}"


def read_place(text: str) -> RowPlace:
    """Return the place in an id whose code was right."""
    epoch, half_offset, log_offset = text.rsplit(".", 2)
    return RowPlace(epoch, int(half_offset, 16), int(log_offset, 16))


class PlaceCodes:
    """Makes the codes of one kind of id; those of another kind differ for the same text."""

    def __init__(self, kind: bytes, key: bytes) -> None:
        self._kind = kind
        self._key = key

    def of(self, text: str) -> str:
        """Return the code over a text."""
        data = text.encode(errors="surrogatepass")
        code = blake2b(data, digest_size=_CODE_BYTES, key=self._key, person=self._kind)
        return code.hexdigest()

    def fits(self, text: str, code: str) -> bool:
        """Whether this broker made the code for this text."""
        given = code.encode(errors="surrogatepass")
        return hmac.compare_digest(given, self.of(text).encode())


def epoch_to_check(lineage: Lineage, place: RowPlace) -> str:
    """Return the epoch of a place; empty if its row is older than every start that is remembered.

    Then its epoch proves nothing; its place in the log does.
    """
    first = lineage.epochs[0]
    is_forgotten = first.id not in (ROOT, place.epoch) and place.log_offset < first.log_offset
    return "" if is_forgotten else place.epoch
