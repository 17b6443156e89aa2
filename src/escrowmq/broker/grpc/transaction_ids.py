"""Transaction ids that the broker makes: they find the transaction in its durable table.

Ids that clients make repeat, so an id names the epoch, the half message and its place in the log.
A code over them, with a key that only this broker has, tells an id that the broker gave from one
that somebody made up.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b
from typing import NamedTuple

from escrowmq.model.errors import RequestRefused
from escrowmq.model.lineage import ROOT, Lineage

KEY_BYTES = 32
ID_CHARS_MAX = 255
_CODE_BYTES = 12


class HalfPlace(NamedTuple):
    """The half message that an id names."""

    epoch: str
    half_offset: int
    log_offset: int


class TransactionIds:
    """Makes and reads the transaction ids of one broker."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def make(self, epoch: str, half_offset: int, log_offset: int) -> str:
        """Return the id of a transaction."""
        named = f"{epoch}.{half_offset:x}.{log_offset:x}"
        return f"{named}.{self._code(named)}"

    def read(self, text: str) -> HalfPlace:
        """Return what an id names; refuse one that this broker did not make."""
        named, _, code = text[:ID_CHARS_MAX].rpartition(".")
        if not hmac.compare_digest(code.encode(), self._code(named).encode()):
            raise RequestRefused(
                "transaction_id_illegal",
                "this broker did not make it; send the id that it answered",
                transaction_id=text[:64],
            )
        epoch, half_offset, log_offset = named.rsplit(".", 2)
        return HalfPlace(epoch, int(half_offset, 16), int(log_offset, 16))

    def _code(self, named: str) -> str:
        data = named.encode(errors="surrogatepass")
        return blake2b(data, digest_size=_CODE_BYTES, key=self._key).hexdigest()


def is_forgotten(lineage: Lineage, place: HalfPlace) -> bool:
    """Whether the half message is older than every start of the broker that it remembers.

    Then its epoch proves nothing; its place in the log and its message id do.
    """
    first = lineage.epochs[0]
    return first.id not in (ROOT, place.epoch) and place.log_offset < first.log_offset
