"""Where half messages come from: numbers for producer group, ledger and time allowed.

An origin that is not used for long expires: it no longer counts, and a producer group that returns
gets a new number.  Its name stays known while the log has records with its number; no number is
ever used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from escrowmq.model.sink_attempt import is_part
from escrowmq.transaction.records import NamedOrigin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EXPIRED = "(expired)"
"""The producer group of a number that the log has no record of any more."""

Key = tuple[str, str, int]
"""Producer group, ledger, time allowed."""


class Used(Protocol):
    """The last use of an origin."""

    @property
    def at_ms(self) -> int:
        """When it was used."""
        ...

    @property
    def frame(self) -> int:
        """The log offset of the last record with its number."""
        ...


class Use(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last use of an origin, as a checkpoint has it."""

    at_ms: int
    frame: int


class PastOrigin(msgspec.Struct, frozen=True, array_like=True):
    """An expired origin that the log still has records of."""

    named: NamedOrigin
    frame: int


class SavedOrigins(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint holds besides the names of the origins that are in use."""

    #: The next number.
    end: int
    #: In the order of the names.
    uses: list[Use]
    past: list[PastOrigin]


class Origins:
    """Every origin that is in use or that the log has records of."""

    def __init__(self) -> None:
        #: The next number.
        self.end = 0
        self.named: dict[int, NamedOrigin] = {}
        self.uses: dict[int, Used] = {}
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

    def apply(self, record: NamedOrigin, use: Used) -> None:
        """Take a name from the log; a number that was given before changes nothing."""
        if record.id == self.end:
            self.end += 1
            self.add(record, use)

    def add(self, named: NamedOrigin, use: Used) -> None:
        """Know an origin."""
        self.named[named.id] = named
        self.uses[named.id] = use
        self.numbers[named.group, named.ledger, named.allowed_ms] = named.id
        if is_part(named.group):
            self.parts.append(named.id)

    def use(self, number: int, use: Used) -> None:
        """An origin was used; a log that is replayed on a later state changes nothing."""
        known = self.uses.get(number)
        if known is not None and known.frame < use.frame:
            self.uses[number] = use

    def carry(self, number: int, frame: int) -> None:
        """A half message was carried forward: the log has its number at a later place."""
        known = self.uses.get(number)
        if known is not None and known.frame < frame:
            self.uses[number] = Use(known.at_ms, frame)

    def is_unused(self, number: int, since_ms: int) -> bool:
        """Whether an origin is known and was not used since."""
        use = self.uses.get(number)
        return use is not None and use.at_ms < since_ms

    def expire(self, numbers: Iterable[int]) -> None:
        """Let origins go; their names stay while the log has records of them."""
        for number in numbers:
            named = self.named.pop(number, None)
            if named is None:
                continue
            del self.numbers[named.group, named.ledger, named.allowed_ms]
            self.past[number] = PastOrigin(named, self.uses.pop(number).frame)
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
            uses=[Use(use.at_ms, use.frame) for use in self.uses.values()],
            past=list(self.past.values()),
        )

    def load(self, names: Iterable[NamedOrigin], saved: SavedOrigins) -> None:
        """Be as it was."""
        for named, use in zip(names, saved.uses, strict=True):
            self.add(named, use)
        self.past = {past.named.id: past for past in saved.past}
        self.end = saved.end
