"""Transaction ids that the broker makes: they find the transaction in its durable table.

An id that a client makes may occur twice. So these ids name the place of the half message, and end
with a code that only this broker can compute.
"""

from __future__ import annotations

from escrowmq.broker.state.row_places import PlaceCodes, RowPlace, read_place
from escrowmq.model.errors import RequestRefused

ID_CHARS_MAX = 255


class TransactionIds:
    """Makes and reads the transaction ids of one broker."""

    def __init__(self, key: bytes) -> None:
        self._codes = PlaceCodes(b"transaction", key)

    def make(self, epoch: str, half_offset: int, log_offset: int) -> str:
        """Return the id of a transaction."""
        named = RowPlace(epoch, half_offset, log_offset).text()
        return f"{named}.{self._codes.of(named)}"

    def read(self, text: str) -> RowPlace:
        """Return what an id names; refuse one that this broker did not make."""
        named, _, code = text[:ID_CHARS_MAX].rpartition(".")
        if not self._codes.fits(named, code):
            raise RequestRefused(
                "transaction_id_illegal",
                "send the id from the broker's answer; this broker did not make the given one",
                transaction_id=text[:64],
            )
        return read_place(named)
