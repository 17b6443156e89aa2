"""Fillers: frames that replace damaged bytes and are exactly as long.

Log offsets are identities, so everything after the damage must stay where it is. A filler states
what the damaged bytes had assigned: names, half offsets, queue offsets. ``sequence`` finds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from escrowmq.model.errors import StoreCorrupt
from escrowmq.store.log.frames import FRAME_BYTES_MAX, HEAD_BYTES, close_frame, open_frame
from escrowmq.store.repair.sequence import HALF, ORIGIN, QUEUE, QUEUE_NAME
from escrowmq.transaction.records import Lost, NamedOrigin, NamedQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.store.repair.inspect import Inspection
    from escrowmq.store.repair.report import BadRange, NumberGap
    from escrowmq.transaction.records import Record

BYTES_MIN = 48
"""Length of the shortest filler. Every frame that a store writes is longer."""

_encode = msgspec.msgpack.Encoder().encode
_TAG = Lost.__struct_config__.tag


class Filler(msgspec.Struct):
    """Names and offsets that one damaged range had assigned."""

    place: BadRange
    #: The highest offset known as flushed. If it lies in the range, the filler is divided there,
    #: because the next start rewrites the log from there on.
    border: int
    names: list[NamedQueue | NamedOrigin] = []
    rows_end: int = -1
    queue_ends: dict[int, int] = {}

    @property
    def room(self) -> int:
        """Bytes left for more facts in the first frame, which holds all of them."""
        is_divided = self.place.log_offset < self.border < self.place.end
        stop = self.border if is_divided else self.place.end
        length = min(stop - self.place.log_offset, FRAME_BYTES_MAX)
        return length - HEAD_BYTES - len(_encode(self.records(length)))

    def records(self, length: int) -> tuple[Record, ...]:
        """Return the records of a first frame of this length."""
        lost = Lost(length, self.rows_end, sorted(self.queue_ends.items()))
        return (*self.names, lost)

    def frames(self, seed: int) -> Iterator[tuple[int, bytearray]]:
        """Yield log offset and bytes of the frames that fill the range."""
        offset, end = self.place.log_offset, self.place.end
        while offset < end:
            stop = self.border if offset < self.border < end else end
            length = min(stop - offset, FRAME_BYTES_MAX)
            if 0 < stop - offset - length < BYTES_MIN:
                length -= BYTES_MIN
            is_first = offset == self.place.log_offset
            records = self.records(length) if is_first else (Lost(length),)
            yield offset, _frame(records, length, (offset, self.place.stored_at_ms, offset), seed)
            offset += length


def fillers(inspection: Inspection) -> list[Filler]:
    """Return one filler per damaged range, with everything that the ranges had assigned."""
    made = [Filler(place, inspection.flushed) for place in inspection.report.damage]
    for filler in made:
        if filler.place.length < BYTES_MIN:
            raise _impossible(filler.place)
    first: dict[str, int] = {}
    for gap in inspection.report.gaps:
        # The range that assigned the numbers is unknown, so pick the one with the most room.
        suspects = _suspects(made, gap, first.get(gap.what, 0))
        filler = max(suspects, key=lambda one: one.room)
        _give(filler, gap, inspection)
        if filler.room < 0:
            raise _impossible(filler.place)
        if gap.what in (QUEUE_NAME, ORIGIN):
            # A replay takes names only in the order of their numbers.
            first[gap.what] = filler.place.log_offset
    # Other fillers with enough room repeat the facts, because a replay may start between them.
    for gap in inspection.report.gaps:
        for filler in _suspects(made, gap, 0):
            more = msgspec.structs.replace(filler, queue_ends=dict(filler.queue_ends))
            _give(more, gap, inspection)
            if more.room >= 0:
                made[made.index(filler)] = more
    return made


def _suspects(made: list[Filler], gap: NumberGap, not_before: int) -> list[Filler]:
    after = max(gap.after, not_before)
    return [one for one in made if after <= one.place.log_offset < gap.before]


def _give(filler: Filler, gap: NumberGap, inspection: Inspection) -> None:
    if gap.what == HALF:
        filler.rows_end = max(filler.rows_end, gap.found)
    elif gap.what == QUEUE:
        filler.queue_ends[gap.queue] = max(filler.queue_ends.get(gap.queue, 0), gap.found)
    else:
        names = {(type(named), named.id): named for named in filler.names}
        for number in range(gap.expected, gap.found):
            named = _named(gap.what, number, inspection)
            names[type(named), number] = named
        filler.names = sorted(names.values(), key=lambda named: named.id)


def _named(what: str, number: int, inspection: Inspection) -> NamedQueue | NamedOrigin:
    if what == QUEUE_NAME:
        # No topic can have this name; it is used if no message is left that tells the real one.
        unknown = NamedQueue(number, f"lost.{number}", 0)
        return inspection.queues.get(number, unknown)
    assert what == ORIGIN
    return inspection.origins.get(number, NamedOrigin(number, "", "", 0))


def _frame(
    records: tuple[Record, ...], length: int, place: tuple[int, int, int], seed: int
) -> bytearray:
    room = length - HEAD_BYTES
    said: tuple[object, ...] = records
    if len(_encode(records)) > room:
        # Such a short frame assigned nothing; omitted fields have their defaults.
        said = ([_TAG, length],)
    frame = open_frame([bytes(room - len(_encode(said)))])
    close_frame(frame, said, place, seed)  # type: ignore[arg-type] # a record, only shorter
    assert len(frame) == length
    return frame


def _impossible(place: BadRange) -> StoreCorrupt:
    return StoreCorrupt(
        "repair_impossible",
        "the damaged range is too short to be filled; restore the segment from a backup",
        segment=place.segment,
        log_offset=place.log_offset,
        length=place.length,
    )
