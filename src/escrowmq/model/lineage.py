"""The lineage of a store: which history a log offset belongs to.

Every broker start appends a random epoch to the log. After a restore, a copied directory, a repair
or a lost tail, a broker assigns log offsets that another history has already used. The two
histories share their first epochs and differ after them, so each recognizes a position of the other
as foreign.
"""

from __future__ import annotations

from itertools import pairwise, takewhile

import msgspec

from escrowmq.model.errors import ProtocolViolation

EPOCHS_MAX = 128
"""Epochs that a lineage keeps. It drops older ones, which makes comparisons more cautious."""

ROOT = "root"
"""The epoch before the first start that appended one."""

REPAIRED = "repaired"
"""Prefix of the id of an epoch that a repair made."""


class Epoch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One start of a broker, and the end of its store at that moment."""

    id: str
    log_offset: int
    #: The next half offset.
    half_offset: int
    #: Store time of the start, later than that of every record before it.
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
        """The first start that appended an epoch; None if there is none, or if it was dropped."""
        has_root = self.epochs[0].id == ROOT and len(self.epochs) > 1
        return self.epochs[1] if has_root else None

    def holds(self, epoch: str, log_offset: int) -> bool:
        """Whether a log offset that was seen under this epoch is part of this history."""
        for one, following in pairwise(self.epochs):
            if one.id == epoch:
                return log_offset <= following.log_offset
        return self.epoch == epoch

    def with_epoch(self, epoch: Epoch) -> Lineage:
        """Return the lineage with this epoch at its log offset; a known epoch changes nothing."""
        if any(one.id == epoch.id for one in self.epochs):
            return self
        epochs = sorted((*self.epochs, epoch), key=lambda one: one.log_offset)
        return Lineage(self.store_id, tuple(epochs[-EPOCHS_MAX:]))

    def without_repairs(self) -> Lineage:
        """Return the lineage without repair epochs: a repair keeps all log and queue offsets."""
        epochs = tuple(one for one in self.epochs if not one.id.startswith(REPAIRED))
        return Lineage(self.store_id, epochs)

    def newest(self, count: int) -> Lineage:
        """Return the lineage with only its newest epochs."""
        return Lineage(self.store_id, self.epochs[-count:])

    def encode(self) -> str:
        """Return the lineage as one line of text."""
        epochs = (f"{one.id}:{one.log_offset}:{one.half_offset}:{one.at_ms}" for one in self.epochs)
        return f"{self.store_id}/{','.join(epochs)}"


class Sight(msgspec.Struct, frozen=True):
    """A history as an observer saw it: its lineage, and how far its log went."""

    lineage: Lineage
    log_end: int
    half_end: int

    @property
    def store_id(self) -> str:
        """Id of the observed store."""
        return self.lineage.store_id

    def fork(self, other: Sight) -> Epoch | None:
        """Return where two histories of a store part; None if one is the beginning of the other.

        Everything below the fork is in both histories. If the epochs do not tell, the fork is the
        highest point that both can share.
        """
        mine, theirs = _aligned(self.lineage.epochs, other.lineage.epochs)
        pairs = zip(mine, theirs, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0].id == pair[1].id, pairs))
        if not shared:
            return min(self._end, other._end, key=lambda one: one.log_offset)
        mine_left, theirs_left = mine[shared:], theirs[shared:]
        following = [left[0] for left in (mine_left, theirs_left) if left]
        if not following:
            return None
        fork = min(following, key=lambda one: one.log_offset)
        is_passed = bool(mine_left) or self.log_end > fork.log_offset
        is_passed_by_other = bool(theirs_left) or other.log_end > fork.log_offset
        return fork if is_passed and is_passed_by_other else None

    @property
    def _end(self) -> Epoch:
        return Epoch("", self.log_end, self.half_end)


def _aligned(
    mine: tuple[Epoch, ...], theirs: tuple[Epoch, ...]
) -> tuple[tuple[Epoch, ...], tuple[Epoch, ...]]:
    """Let both lineages begin with the same epoch: a long one has dropped its oldest epochs."""
    for at, one in enumerate(mine):
        if one.id == theirs[0].id:
            return mine[at:], theirs
    for at, one in enumerate(theirs):
        if one.id == mine[0].id:
            return mine, theirs[at:]
    return mine, theirs


def new_lineage(store_id: str) -> Lineage:
    """Return the lineage of a store to which no start has appended an epoch."""
    return Lineage(store_id, (Epoch(ROOT, 0, 0),))


def repaired(log_offset: int, half_offset: int) -> Epoch:
    """Return the epoch that begins after a range of the log that repair removed.

    Its id is derived from its log offset, because recovery makes the epoch again from the log.
    """
    return Epoch(f"{REPAIRED}-{log_offset}", log_offset, half_offset)


def decode_lineage(text: str) -> Lineage | None:
    """Decode the text that ``encode`` wrote; None for empty text: the broker has no lineage."""
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
