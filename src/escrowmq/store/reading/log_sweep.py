"""Reads a range of the log for listings, with the most common records as columns.

Most of a log is transactions of one message, in a fixed layout (``lone_frames``). Their frames are
verified one by one, like all frames. Then numpy extracts their fields, and only their texts become
Python objects. Lone records that are not wanted are skipped by the length in their heads, without
being verified. All other records are decoded one by one.

The log is damaged if no frame begins at an expected offset, or if a frame's bytes have changed.
Only the sweep over the range in which the damage starts reports it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from escrowmq.store.disk.rows import Rows, windows
from escrowmq.store.log import lone_frames
from escrowmq.store.log.frames import (
    HEAD_BYTES,
    MAGIC,
    are_vouched,
    decode_records,
    stated_heads,
)
from escrowmq.store.reading.log_scan import CANDIDATES_MAX, LogScan, Passed
from escrowmq.transaction.records import Scheduled, Stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.store.log.commit_log import Segment
    from escrowmq.store.store import Store

BLOCK_BYTES = 512 * 1024
"""Bytes read between two checks of the time."""

BRIEFLY = 4
"""A brief sweep reads blocks smaller by this factor."""

BEFORE_BYTES = (16 * 1024, 4 * 1024 * 1024)
"""Bytes searched for the frame before an offset: in the first attempt, and in the last."""

#: Kinds of frames: not wanted but verified, three kinds that are taken, skipped unverified.
_NOTHING, _HALF, _DECISION, _OTHER, _PASSED = range(5)
#: The byte with which MessagePack begins an array of one.
_ONE_RECORD = 0x91
#: Tags of records that concern no transaction.
_ORDINARY: list[int] = [kind.__struct_config__.tag for kind in (Stored, Scheduled)]  # type: ignore[misc]  # numbers here


@dataclass(frozen=True, slots=True)
class Lone:
    """Records of one fixed layout, in log order."""

    #: Log offsets and store times of their frames.
    offsets: Rows
    at_ms: Rows
    #: The records, and the text at the end of each; no texts if they are not wanted.
    records: Rows
    texts: list[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChoice:
    """Which records a sweep returns."""

    halves: bool = False
    decisions: bool = False
    #: Records that are not lone, of frames with messages and of frames without.
    others_with_messages: bool = False
    others_without: bool = False
    #: Whether to return the texts of lone records.
    texts: bool = True

    def kinds(self, data: bytes, places: Rows, heads: Rows) -> Rows:
        """Return the kind of each of these frames."""
        bytes_of = np.frombuffer(data, dtype=np.uint8)
        tails = places + heads["records_at"]
        first, second = bytes_of[tails], bytes_of[tails + 1]
        has_messages = heads["records_at"] > HEAD_BYTES
        is_lone = first == lone_frames.MARK
        is_half = is_lone & has_messages & (second == lone_frames.HALF_KIND)
        is_decision = is_lone & ~has_messages & (second == lone_frames.DECISION_KIND)
        kinds: Rows = np.zeros(len(places), dtype=np.uint8)
        kinds[is_half] = _HALF if self.halves else _PASSED
        kinds[is_decision] = _DECISION if self.decisions else _PASSED
        others = np.flatnonzero(~(is_half | is_decision))
        if len(others):
            # A frame of ordinary messages: the tag of its single record follows two array heads.
            tags = bytes_of[np.minimum(tails[others] + 2, len(data) - 1)]
            is_ordinary = (first[others] == _ONE_RECORD) & np.isin(tags, _ORDINARY)
            is_wanted = np.where(
                has_messages[others], self.others_with_messages & ~is_ordinary, self.others_without
            )
            kinds[others] = np.where(is_wanted, _OTHER, _NOTHING)
        return kinds


#: Everything about transactions.
_ALL = RecordChoice(halves=True, decisions=True, others_with_messages=True, others_without=True)


@dataclass(slots=True)
class Swept:
    """What a sweep found in a range of the log."""

    #: The log offset at which to continue.
    end: int
    halves: list[Lone] = field(default_factory=list)
    decisions: list[Lone] = field(default_factory=list)
    others: list[Passed] = field(default_factory=list)
    #: Log offset and length of each unreadable range.
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    #: Number of frames taken.
    frames: int = 0


class LogSweep:
    """Sweeps one store's log."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._scan = LogScan(store)

    def sweep(
        self,
        start: int,
        end: int,
        wanted: RecordChoice,
        *,
        frames_max: int,
        is_over: Callable[[], bool] = bool,
        is_brief: bool = False,
    ) -> Swept:
        """Take at most ``frames_max`` frames that start in ``[start, end)``, until ``is_over``.

        Every call makes progress, so repeated calls reach the end.
        """
        store = self._store
        end = min(end, store.durable_end)
        start = max(start, store.log.start)
        swept = Swept(start)
        block_bytes = BLOCK_BYTES // BRIEFLY if is_brief else BLOCK_BYTES
        #: Whether a frame must start at ``swept.end``.
        is_sure = False
        while swept.end < end and swept.frames < frames_max:
            before = swept.end
            self._read_block(swept, end, wanted, frames_max, block_bytes)
            if swept.end > before:
                is_sure = True
            else:
                is_sure = is_sure or self._scan.segment_of(before).start == before
                is_sure = is_sure or (before == start and self._find_border(swept))
                if swept.end == before:
                    self._pass_over(swept, is_told=is_sure)
            if is_over():
                break
        self._note_lost(swept, start)
        return swept

    # Frames.

    def _read_block(
        self, swept: Swept, end: int, wanted: RecordChoice, frames_max: int, block_bytes: int
    ) -> None:
        base, seed = swept.end, self._store.seed
        data = bytes(self._scan.block(base, block_bytes))
        places, heads = stated_heads(data, base)
        count = int(np.searchsorted(places, end - base))
        if not count or not are_vouched(data, places[:1], heads[:1], seed)[0]:
            # The places of later frames are known only if the first frame is a verified one.
            return
        kinds = wanted.kinds(data, places[:count], heads[:count])
        taken = np.flatnonzero((kinds != _NOTHING) & (kinds != _PASSED))
        room = frames_max - swept.frames
        if len(taken) > room:
            count = int(taken[room])
        looked_at = np.flatnonzero(kinds[:count] != _PASSED)
        is_vouched = are_vouched(data, places[looked_at], heads[looked_at], seed)
        if not is_vouched.all():
            count = int(looked_at[np.argmin(is_vouched)])
        kinds = kinds[:count]
        swept.frames += int(np.searchsorted(taken, count))
        swept.end = base + int(places[count - 1]) + int(heads["length"][count - 1])
        halves, decisions = np.flatnonzero(kinds == _HALF), np.flatnonzero(kinds == _DECISION)
        if len(halves):
            swept.halves.append(_halves(data, places[halves], heads[halves], wanted))
        if len(decisions):
            swept.decisions.append(_decisions(data, places[decisions], heads[decisions], wanted))
        for at in np.flatnonzero(kinds == _OTHER).tolist():
            swept.others.append(_passed(data, int(places[at]), heads[at]))

    # Bytes that are not a frame.

    def _find_border(self, swept: Swept) -> bool:
        """Advance to the end of the frame around this offset; False if there may be none."""
        border = self._end_before(swept.end)
        if border is None or border < swept.end:
            # The offset is inside a very large frame, or inside damage that starts before it.
            return False
        swept.end = border
        return True

    def _pass_over(self, swept: Swept, *, is_told: bool) -> None:
        """Skip bytes up to the next frame or the end of the search; report them if ``is_told``."""
        at = swept.end
        swept.end = self._scan.next_frame(at + 1)
        if is_told:
            if swept.unreadable and sum(swept.unreadable[-1]) == at:
                at, _ = swept.unreadable.pop()
            swept.unreadable.append((at, swept.end - at))

    def _note_lost(self, swept: Swept, start: int) -> None:
        """Report ranges that a repair took out as unreadable."""
        lost = [(at, end - at) for at, end in self._store.lost.ranges if start <= at < swept.end]
        if lost:
            swept.unreadable = sorted([*swept.unreadable, *lost])

    def _end_before(self, log_offset: int) -> int | None:
        """Return the end of the last frame that starts before this offset; None if unknown."""
        segment = self._scan.segment_of(log_offset)
        for size in BEFORE_BYTES:
            start = max(segment.start, log_offset - size)
            end = self._last_end(segment, start, log_offset)
            if end is not None or start == segment.start:
                return end
        return None

    def _last_end(self, segment: Segment, start: int, log_offset: int) -> int | None:
        """Return the end of the last frame that starts in ``[start, log_offset)``."""
        size = log_offset - start
        # A frame may start with the last byte.
        data = segment.file.read_at(start - segment.start, size + len(MAGIC) - 1)
        at = size
        for _ in range(CANDIDATES_MAX):
            at = data.rfind(MAGIC, 0, at + len(MAGIC) - 1)
            if at < 0:
                break
            end = self._scan.frame_end(start + at)
            if end is not None:
                return end
        return None


def lone_stretch(data: bytes, base: int, end: int, seed: int) -> Swept:
    """Return the lone records at the start of these log bytes, which begin at offset `base`.

    Stops at the first frame that starts at or after `end`, holds other records about transactions,
    or is invalid. Only the store itself can interpret such a frame.
    """
    swept = Swept(base)
    places, heads = stated_heads(data, base)
    count = int(np.searchsorted(places, end - base))
    kinds = _ALL.kinds(data, places[:count], heads[:count])
    is_known = (kinds != _OTHER) & are_vouched(data, places[:count], heads[:count], seed)
    count = count if is_known.all() else int(np.argmin(is_known))
    if not count:
        return swept
    swept.frames = count
    swept.end = base + int(places[count - 1]) + int(heads["length"][count - 1])
    halves = np.flatnonzero(kinds[:count] == _HALF)
    decisions = np.flatnonzero(kinds[:count] == _DECISION)
    swept.halves.append(_halves(data, places[halves], heads[halves], _ALL))
    swept.decisions.append(_decisions(data, places[decisions], heads[decisions], _ALL))
    return swept


def _halves(data: bytes, places: Rows, heads: Rows, wanted: RecordChoice) -> Lone:
    tails = places + heads["records_at"]
    records = windows(data, lone_frames.HALF, tails)
    ids_at = tails + lone_frames.HALF_BYTES + 4 * records["key_count"].astype(np.int64)
    texts = _texts(data, ids_at, places + heads["length"]) if wanted.texts else []
    return Lone(heads["log_offset"], heads["stored_at_ms"], records, texts)


def _decisions(data: bytes, places: Rows, heads: Rows, wanted: RecordChoice) -> Lone:
    tails = places + heads["records_at"]
    records = windows(data, lone_frames.DECISION, tails)
    ends = places + heads["length"]
    texts = _texts(data, tails + lone_frames.DECISION_BYTES, ends) if wanted.texts else []
    return Lone(heads["log_offset"], heads["stored_at_ms"], records, texts)


def _texts(data: bytes, starts: Rows, ends: Rows) -> list[bytes]:
    pairs = zip(starts.tolist(), ends.tolist(), strict=True)
    return [data[start:end] for start, end in pairs]


def _passed(data: bytes, place: int, head: np.void) -> Passed:
    log_offset, end = int(head["log_offset"]), place + int(head["length"])
    records = decode_records(data[place + int(head["records_at"]) : end], log_offset)
    return Passed(log_offset, log_offset + end - place, int(head["stored_at_ms"]), records)
