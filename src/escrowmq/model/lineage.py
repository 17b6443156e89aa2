"""The lineage of a store: which history a log offset belongs to.

Every broker start appends a random epoch to the log.  A restore, a copied directory, a repair or a
lost tail makes a broker give log offsets again that another history has used.  The two histories
then share their first epochs and differ after them, so that each recognizes a position of the
other as foreign.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from escrowmq.model.errors import ProtocolViolation

EPOCHS_MAX = 128
"""Epochs that a lineage names.  It drops older ones, which makes comparisons more careful."""

ROOT = "root"
"""The epoch before the first start that appended one."""

REPAIRED = "repaired"
"""The id of an epoch that a repair made begins with this."""


class Epoch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One start of a broker, and where its store stood then."""

    id: str
    log_offset: int
    #: The next half offset.
    half_offset: int
    #: Its store time, which is later than that of everything before it.
    at_ms: int = 0


class Lineage(msgspec.Struct, frozen=True):
    """The history of one store: its epochs, in the order of their log offsets."""

    store_id: str
    epochs: tuple[Epoch, ...]

    @property
    def epoch(self) -> str:
        """The id of the newest epoch."""
        return self.epochs[-1].id

    @property
    def first_epoch(self) -> Epoch | None:
        """The first start that appended an epoch; None if that is not known any more."""
        has_root = self.epochs[0].id == ROOT and len(self.epochs) > 1
        return self.epochs[1] if has_root else None

    def holds(self, epoch: str, log_offset: int) -> bool:
        """Whether something seen under this epoch at this log offset is part of this history."""
        for one, following in pairwise(self.epochs):
            if one.id == epoch:
                return log_offset <= following.log_offset
        return self.epoch == epoch

    def with_epoch(self, epoch: Epoch) -> Lineage:
        """The same with an epoch in its place; one that is here already changes nothing."""
        if any(one.id == epoch.id for one in self.epochs):
            return self
        epochs = sorted((*self.epochs, epoch), key=lambda one: one.log_offset)
        return Lineage(self.store_id, tuple(epochs[-EPOCHS_MAX:]))

    def without_repairs(self) -> Lineage:
        """The same without the epochs of repairs, which keep every log offset and queue offset."""
        epochs = tuple(one for one in self.epochs if not one.id.startswith(REPAIRED))
        return Lineage(self.store_id, epochs)

    def newest(self, count: int) -> Lineage:
        """The same with only its newest epochs."""
        return Lineage(self.store_id, self.epochs[-count:])

    def encode(self) -> str:
        """As one line of text."""
        epochs = (f"{one.id}:{one.log_offset}:{one.half_offset}:{one.at_ms}" for one in self.epochs)
        return f"{self.store_id}/{','.join(epochs)}"


class Sight(msgspec.Struct, frozen=True):
    """A history as somebody saw it: its lineage, and how far it went."""

    lineage: Lineage
    log_end: int
    half_end: int

    @property
    def store_id(self) -> str:
        """The store that was looked at."""
        return self.lineage.store_id

    def fork(self, other: Sight) -> Epoch | None:
        """Where another history of the same store left this one; None if it did not.

        What is below the fork is in both histories.  Where the epochs do not tell, the fork is the
        highest point that both can share.
        """
        mine, theirs = _aligned(self.lineage.epochs, other.lineage.epochs)
        shared = 0
        for one, another in zip(mine, theirs, strict=False):
            if one.id != another.id:
                break
            shared += 1
        if not shared:
            return min(self._end, other._end, key=_log_offset)
        mine_left, theirs_left = mine[shared:], theirs[shared:]
        following = [left[0] for left in (mine_left, theirs_left) if left]
        if not following:
            return None
        fork = min(following, key=_log_offset)
        is_passed = bool(mine_left) or self.log_end > fork.log_offset
        is_passed_by_other = bool(theirs_left) or other.log_end > fork.log_offset
        return fork if is_passed and is_passed_by_other else None

    @property
    def _end(self) -> Epoch:
        return Epoch("", self.log_end, self.half_end)


def _log_offset(epoch: Epoch) -> int:
    return epoch.log_offset


def _aligned(
    mine: tuple[Epoch, ...], theirs: tuple[Epoch, ...]
) -> tuple[tuple[Epoch, ...], tuple[Epoch, ...]]:
    """Both from the first epoch on that both name; a long lineage has dropped its oldest ones."""
    for at, one in enumerate(mine):
        if one.id == theirs[0].id:
            return mine[at:], theirs
    for at, one in enumerate(theirs):
        if one.id == mine[0].id:
            return mine, theirs[at:]
    return mine, theirs


def new_lineage(store_id: str) -> Lineage:
    """The lineage of a store to which no start has appended an epoch."""
    return Lineage(store_id, (Epoch(ROOT, 0, 0),))


def repaired(log_offset: int, half_offset: int) -> Epoch:
    """The epoch after a range of the log that repair took out.

    Its id follows from the range, because recovery makes the epoch anew from the log.
    """
    return Epoch(f"{REPAIRED}-{log_offset}", log_offset, half_offset)


def decode_lineage(text: str) -> Lineage | None:
    """Read what ``encode`` wrote; None for the empty text of a broker without a lineage."""
    if not text:
        return None
    store_id, _, stated = text.partition("/")
    try:
        parts = [one.split(":") for one in stated.split(",")]
        epochs = tuple(
            Epoch(name, int(log_offset), int(half_offset), int(at_ms))
            for name, log_offset, half_offset, at_ms in parts
        )
    except ValueError:
        raise ProtocolViolation("lineage_malformed", lineage=text[:64]) from None
    return Lineage(store_id, epochs)
