"""Numbers that stand for origins: producer group, ledger, time allowed and user.

An origin that is unused for long expires: it no longer counts against its limit, and a producer
group that returns gets a new number. Its name is kept while the log has records with its number. A
number is never reused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from escrowmq.model.sink_attempt import is_part
from escrowmq.transaction.records import NEVER, NamedOrigin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EXPIRED = "(expired)"
"""Stands for the producer group of a number that the log no longer has records of."""

Key = tuple[str, str, int, str]
"""Producer group, ledger, time allowed, user."""


class PastOrigin(msgspec.Struct, frozen=True, array_like=True):
    """An expired origin that the log still has records of."""

    named: NamedOrigin
    frame: int


class SavedOrigins(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoint of the origins, but for the names of those in use."""

    #: The next number.
    end: int
    #: In the order of the names: when each was last used, and the log offset of its last record.
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
        #: By producer group: how many origins in use it has.
        self.groups: dict[str, int] = {}
        #: Origins whose transactions another broker decides.
        self.parts: list[int] = []

    def __len__(self) -> int:
        """Number of origins in use."""
        return len(self.named)

    def __getitem__(self, number: int) -> NamedOrigin:
        """The origin that a number stands for, or stood for."""
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
        """All origins with a known name, in the order of their numbers."""
        known = [*self.named.values(), *(past.named for past in self.past.values())]
        return iter(sorted(known, key=lambda named: named.id))

    def is_of(self, number: int, group: str) -> bool:
        """Whether a number may stand for this producer group; true if its name is forgotten."""
        return self[number].group in (group, EXPIRED)

    def of(self, group: str, ledger: str, allowed_ms: int, user: str = "") -> int | NamedOrigin:
        """The origin's number, or the record that gives it one."""
        known = self.numbers.get((group, ledger, allowed_ms, user))
        return NamedOrigin(self.end, group, ledger, allowed_ms, user) if known is None else known

    def apply(self, record: NamedOrigin, at_ms: int, frame: int) -> None:
        """Apply a name from the log; a number that was given before changes nothing."""
        if record.id == self.end:
            self.end += 1
            self._add(record, at_ms, frame)

    def _add(self, named: NamedOrigin, at_ms: int, frame: int) -> None:
        self.named[named.id] = named
        self.used_at_ms[named.id] = at_ms
        self.frames[named.id] = frame
        self.numbers[_key(named)] = named.id
        self.groups[named.group] = self.groups.get(named.group, 0) + 1
        if is_part(named.group):
            self.parts.append(named.id)

    def use(self, number: int, at_ms: int, frame: int) -> None:
        """Note a use of an origin; replaying the log on a later state changes nothing."""
        # NEVER is above every log offset, so an unknown origin stays unknown.
        if self.frames.get(number, NEVER) < frame:
            self.used_at_ms[number] = at_ms
            self.frames[number] = frame

    def carry(self, number: int, frame: int) -> None:
        """Note that a half message was carried forward: the log has its origin further on."""
        if self.frames.get(number, NEVER) < frame:
            self.frames[number] = frame

    def is_unused(self, number: int, since_ms: int) -> bool:
        """Whether a known origin was not used since ``since_ms``."""
        return self.used_at_ms.get(number, since_ms) < since_ms

    def expire(self, numbers: Iterable[int]) -> None:
        """Expire origins; keep their names while the log has records of them."""
        for number in numbers:
            named = self.named.pop(number, None)
            if named is None:
                continue
            del self.numbers[_key(named)]
            self.groups[named.group] -= 1
            if not self.groups[named.group]:
                del self.groups[named.group]
            self.past[number] = PastOrigin(named, self.frames.pop(number))
            del self.used_at_ms[number]
            if number in self.parts:
                self.parts.remove(number)

    def forget_below(self, log_offset: int) -> None:
        """Forget expired origins that the log no longer has records of."""
        gone = [number for number, past in self.past.items() if past.frame < log_offset]
        for number in gone:
            del self.past[number]

    def saved(self) -> SavedOrigins:
        """Return everything but the names in use, for a checkpoint."""
        return SavedOrigins(
            end=self.end,
            used_at_ms=list(self.used_at_ms.values()),
            frames=list(self.frames.values()),
            past=list(self.past.values()),
        )

    def load(self, names: Iterable[NamedOrigin], saved: SavedOrigins) -> None:
        """Load a checkpoint."""
        for named, at_ms, frame in zip(names, saved.used_at_ms, saved.frames, strict=True):
            self._add(named, at_ms, frame)
        self.past = {past.named.id: past for past in saved.past}
        self.end = saved.end


def _key(named: NamedOrigin) -> Key:
    return named.group, named.ledger, named.allowed_ms, named.user
