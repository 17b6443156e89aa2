"""Where half messages come from: numbers for producer group, ledger and time allowed.

An origin that is not used for long expires: it no longer counts, and a producer group that returns
gets a new number.  Its name stays known while the log has records with its number; no number is
ever used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from escrowmq.model.sink_attempt import is_part
from escrowmq.transaction.records import NEVER, NamedOrigin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EXPIRED = "(expired)"
"""The producer group of a number that the log has no record of any more."""

Key = tuple[str, str, int]
"""Producer group, ledger, time allowed."""


class PastOrigin(msgspec.Struct, frozen=True, array_like=True):
    """An expired origin that the log still has records of."""

    named: NamedOrigin
    frame: int


class SavedOrigins(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint holds besides the names of the origins that are in use."""

    #: The next number.
    end: int
    #: In the order of the names: when each was last used, and its last place in the log.
    used_at_ms: list[int]
    frames: list[int]
    past: list[PastOrigin]


class Origins:
    """Every origin that is in use or that the log has records of."""

    def __init__(self) -> None:
        #: The next number.
        self.end = 0
        self.named: dict[int, NamedOrigin] = {}
        #: By number: when it was last used, and the log offset of the last record with it.
        self.used_at_ms: dict[int, int] = {}
        self.frames: dict[int, int] = {}
        self.past: dict[int, PastOrigin] = {}
        self.numbers: dict[Key, int] = {}
        #: Origins of what another broker decides.
        self.parts: list[int] = []

    def __len__(self) -> int:
        """How many are in use."""
        return len(self.named)

    def __getitem__(self, number: int) -> NamedOrigin:
        """What a number stands for, or stood for."""
        named = self.named.get(number)
        if named is None:
            past = self.past.get(number)
            named = NamedOrigin(number, EXPIRED, "", 0) if past is None else past.named
        return named

    def all_of(self, numbers: Iterable[int]) -> list[NamedOrigin]:
        """What each of these numbers stands for, or stood for; cheap for tens of thousands."""
        known = self.named.get
        return [known(number) or self[number] for number in numbers]

    def __iter__(self) -> Iterator[NamedOrigin]:
        """All whose names are known, in the order of their numbers."""
        known = [*self.named.values(), *(past.named for past in self.past.values())]
        return iter(sorted(known, key=lambda named: named.id))

    def is_of(self, number: int, group: str) -> bool:
        """Whether this producer group may be the one that a number stands for."""
        return self[number].group in (group, EXPIRED)

    def of(self, group: str, ledger: str, allowed_ms: int) -> int | NamedOrigin:
        """The origin's number, or the record that gives it one."""
        known = self.numbers.get((group, ledger, allowed_ms))
        return NamedOrigin(self.end, group, ledger, allowed_ms) if known is None else known

    def apply(self, record: NamedOrigin, at_ms: int, frame: int) -> None:
        """Take a name from the log; a number that was given before changes nothing."""
        if record.id == self.end:
            self.end += 1
            self._add(record, at_ms, frame)

    def _add(self, named: NamedOrigin, at_ms: int, frame: int) -> None:
        self.named[named.id] = named
        self.used_at_ms[named.id] = at_ms
        self.frames[named.id] = frame
        self.numbers[named.group, named.ledger, named.allowed_ms] = named.id
        if is_part(named.group):
            self.parts.append(named.id)

    def use(self, number: int, at_ms: int, frame: int) -> None:
        """An origin was used; a log that is replayed on a later state changes nothing."""
        # Above every place in the log if the origin is not known.
        if self.frames.get(number, NEVER) < frame:
            self.used_at_ms[number] = at_ms
            self.frames[number] = frame

    def carry(self, number: int, frame: int) -> None:
        """A half message was carried forward: the log has its number at a later place."""
        if self.frames.get(number, NEVER) < frame:
            self.frames[number] = frame

    def is_unused(self, number: int, since_ms: int) -> bool:
        """Whether an origin is known and was not used since."""
        return self.used_at_ms.get(number, since_ms) < since_ms

    def expire(self, numbers: Iterable[int]) -> None:
        """Let origins go; their names stay while the log has records of them."""
        for number in numbers:
            named = self.named.pop(number, None)
            if named is None:
                continue
            del self.numbers[named.group, named.ledger, named.allowed_ms]
            self.past[number] = PastOrigin(named, self.frames.pop(number))
            del self.used_at_ms[number]
            if number in self.parts:
                self.parts.remove(number)

    def forget_below(self, log_offset: int) -> None:
        """Forget expired origins that the log has no record of any more."""
        gone = [number for number, past in self.past.items() if past.frame < log_offset]
        for number in gone:
            del self.past[number]

    def saved(self) -> SavedOrigins:
        """All but the names in use, for a checkpoint."""
        return SavedOrigins(
            end=self.end,
            used_at_ms=list(self.used_at_ms.values()),
            frames=list(self.frames.values()),
            past=list(self.past.values()),
        )

    def load(self, names: Iterable[NamedOrigin], saved: SavedOrigins) -> None:
        """Be as it was."""
        for named, at_ms, frame in zip(names, saved.used_at_ms, saved.frames, strict=True):
            self._add(named, at_ms, frame)
        self.past = {past.named.id: past for past in saved.past}
        self.end = saved.end
