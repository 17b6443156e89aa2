"""Positions of a stream in the brokers' histories, as its checkpoint keeps them.

For each broker the checkpoint holds the stream's position and the history that it saw there. A
restored broker repeats offsets that another history used. Its lineage tells up to where both
histories are the same, and a position beyond that point continues there.

A checkpoint of version 1 has positions without histories. A program of that version fails on a
checkpoint of this version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from escrowmq.model.errors import RequestRefused
from escrowmq.model.lineage import Epoch, Sight, decode_lineage

VERSION = 2
EPOCHS_MAX = 8
"""How many epochs of a lineage a checkpoint keeps: those of the broker's last starts."""

Kept = dict[str, Any]
"""What a checkpoint keeps of each broker, by broker."""


class Position(NamedTuple):
    """A stream's position in one broker's history."""

    #: Offsets by topic and queue, or a log offset.
    at: Any
    #: None if an older program wrote it, or an older broker did not report it.
    sight: Sight | None
    #: Where each topic began in the log, by topic; None if an older program wrote it.
    born: Mapping[str, int] | None = None

    @property
    def history(self) -> str:
        """The lineage as text; empty if unknown."""
        return "" if self.sight is None else self.sight.lineage.encode()

    def is_before(self, topic: str, born: int) -> bool:
        """Whether this position is from before the topic was created at the log offset `born`."""
        if self.born is not None:
            return self.born.get(topic, born) != born
        return self.sight is not None and born >= self.sight.log_end


def position_of(kept: Any) -> Position:  # noqa: ANN401 - what JSON has
    """Parse what the checkpoint keeps of one broker."""
    # In version 1 the keys are topics, and their values are never integers.
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
    text = f"a stream of another view wrote this checkpoint; a stream of {wanted} needs its own"
    return RequestRefused("checkpoint_not_ours", text, broker=broker)


def places(kept: Kept) -> dict[str, Any]:
    """The stream's positions by broker, without the histories."""
    return {broker: position_of(one).at for broker, one in kept.items()}


def to_keep(
    places: Kept,
    sights: Mapping[str, Sight],
    before: Kept,
    born: Mapping[tuple[str, str], int] | None = None,
) -> dict[str, Any]:
    """The new content of a checkpoint. Brokers without news keep their old entry.

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
        # A log that grew without anything to read must not cause a batch.
        is_same = was.at == at and (
            sight is None or (was.history == is_now.history and _is_born(was, is_now))
        )
        kept[broker] = old if is_same else entry
    return kept


def _is_born(was: Position, is_now: Position) -> bool:
    """Whether both positions are of the same incarnations of their topics."""
    return not any(was.is_before(topic, born) for topic, born in (is_now.born or {}).items())


def _entry(at: Any, sight: Sight) -> dict[str, Any]:  # noqa: ANN401 - as above
    # Repairs do not change the offsets of messages.
    lineage = sight.lineage.without_repairs().newest(EPOCHS_MAX)
    return {
        "version": VERSION,
        "lineage": lineage.encode(),
        "log_end": sight.log_end,
        "half_end": sight.half_end,
        "at": at,
    }


def is_other_store(seen: Sight | None, there: Sight | None) -> bool:
    """Whether a broker's store is not the one that was seen."""
    return seen is not None and there is not None and seen.store_id != there.store_id


def fork_of(broker: str, seen: Sight | None, there: Sight | None) -> Epoch | None:
    """Where a broker's history left the one that was seen; None if it continues that one.

    Raises:
        RequestRefused: ``history_unknown``, if the lineages do not tell.
    """
    if seen is None or there is None or is_other_store(seen, there):
        return None
    fork = Sight(there.lineage.without_repairs(), there.log_end, there.half_end).fork(seen)
    if fork is not None and not fork.id:
        raise RequestRefused(
            "history_unknown",
            "the broker has restarted too often since this position, or its store has another "
            "history: start with a new checkpoint, and set startingOffsets",
            broker=broker,
            seen=seen.lineage.epoch,
            epoch=there.lineage.epoch,
        )
    return fork


def forks_between(before: Kept, after: Kept) -> dict[str, int]:
    """The log offsets at which brokers' histories fork between two positions, by broker."""
    forks = {}
    for broker, kept in after.items():
        seen = position_of(before.get(broker)).sight
        fork = fork_of(broker, seen, position_of(kept).sight)
        if fork is not None:
            forks[broker] = fork.log_offset
    return forks
