"""Positions of a stream in the brokers' histories, as its checkpoint keeps them.

For each broker the checkpoint has where the stream stands and which history it saw there.  A broker
that was restored repeats offsets that another history used: its lineage tells up to where both
histories are the same, and a position beyond that continues there.

A checkpoint of version 1 has positions without histories.  A program of that version fails on what
is written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from escrowmq.model.errors import RequestRefused
from escrowmq.model.lineage import Epoch, Sight, decode_lineage

VERSION = 2
EPOCHS_MAX = 8
"""Epochs that a checkpoint keeps of a lineage: those of the last starts of the broker."""

Kept = dict[str, Any]
"""By broker, what a checkpoint keeps of it."""


class Position(NamedTuple):
    """Where a stream stands in one broker's history."""

    #: Offsets by topic and queue, or an offset of the log.
    at: Any
    #: None if an older program wrote it, or an older broker did not tell.
    sight: Sight | None
    #: By topic, where it began in the log; None if an older program wrote it.
    born: Mapping[str, int] | None = None

    @property
    def history(self) -> str:
        """The lineage as text; empty if it is not known."""
        return "" if self.sight is None else self.sight.lineage.encode()

    def is_before(self, topic: str, born: int) -> bool:
        """Whether it is of another incarnation of a topic than the one that began there."""
        if self.born is not None:
            return self.born.get(topic, born) != born
        return self.sight is not None and born >= self.sight.log_end


def position_of(kept: Any) -> Position:  # noqa: ANN401 - what JSON has
    """What the checkpoint keeps of one broker."""
    # In version 1, what has a topic's name is never a number.
    if not isinstance(kept, Mapping) or not isinstance(kept.get("version"), int):
        return Position(kept, None)
    if kept["version"] > VERSION:
        raise RequestRefused(
            "checkpoint_version_unknown",
            "a newer EscrowMQ wrote this checkpoint: update this program",
            version=kept["version"],
            known=VERSION,
        )
    lineage = decode_lineage(kept["lineage"])
    assert lineage is not None
    sight = Sight(lineage, kept["log_end"], kept["half_end"])
    return Position(kept["at"], sight, kept.get("born"))


def not_ours(broker: str, wanted: str) -> RequestRefused:
    """The error for a checkpoint that a stream of another kind wrote."""
    text = f"a stream of another view wrote this checkpoint: give the stream of {wanted} its own"
    return RequestRefused("checkpoint_not_ours", text, broker=broker)


def places(kept: Kept) -> dict[str, Any]:
    """Where a stream stands, by broker, without the histories."""
    return {broker: position_of(one).at for broker, one in kept.items()}


def to_keep(
    places: Kept,
    sights: Mapping[str, Sight],
    before: Kept,
    born: Mapping[tuple[str, str], int] | None = None,
) -> dict[str, Any]:
    """What a checkpoint keeps; of a broker where nothing is new, what it kept before.

    ``born`` says where topics began, by broker and topic.
    """
    kept = {}
    for broker, at in places.items():
        sight, old = sights.get(broker), before.get(broker)
        entry = at if sight is None else _entry(at, sight)
        if sight is not None and born is not None:
            of_broker = {topic: one for (name, topic), one in born.items() if name == broker}
            entry["born"] = {topic: of_broker[topic] for topic in at if topic in of_broker}
        was, is_now = position_of(old), position_of(entry)
        # A log that grew by nothing that is read makes no batch.
        is_same = was.at == at and (
            sight is None or (was.history == is_now.history and _is_born(was, is_now))
        )
        kept[broker] = old if is_same else entry
    return kept


def _is_born(was: Position, is_now: Position) -> bool:
    """Whether both are of the same incarnations of their topics."""
    return not any(was.is_before(topic, born) for topic, born in (is_now.born or {}).items())


def _entry(at: Any, sight: Sight) -> dict[str, Any]:  # noqa: ANN401 - as above
    # Repairs keep the offsets of messages.
    lineage = sight.lineage.without_repairs().newest(EPOCHS_MAX)
    return {
        "version": VERSION,
        "lineage": lineage.encode(),
        "log_end": sight.log_end,
        "half_end": sight.half_end,
        "at": at,
    }


def is_other_store(seen: Sight | None, there: Sight | None) -> bool:
    """Whether a broker has another store than the one that was seen."""
    return seen is not None and there is not None and seen.store_id != there.store_id


def fork_of(broker: str, seen: Sight | None, there: Sight | None) -> Epoch | None:
    """Where a broker's history left the one that was seen; None if it goes on from there.

    Raises:
        RequestRefused: ``history_unknown``: nobody can tell.
    """
    if seen is None or there is None or is_other_store(seen, there):
        return None
    fork = Sight(there.lineage.without_repairs(), there.log_end, there.half_end).fork(seen)
    if fork is not None and not fork.id:
        raise RequestRefused(
            "history_unknown",
            "the broker has started too often since, or has another history of its store: begin "
            "with a new checkpoint, and name the offsets that it starts at",
            broker=broker,
            seen=seen.lineage.epoch,
            epoch=there.lineage.epoch,
        )
    return fork


def forks_between(before: Kept, after: Kept) -> dict[str, int]:
    """Brokers whose histories fork between two positions, and at which log offset."""
    forks = {}
    for broker, kept in after.items():
        seen = position_of(before.get(broker)).sight
        fork = fork_of(broker, seen, position_of(kept).sight)
        if fork is not None:
            forks[broker] = fork.log_offset
    return forks
