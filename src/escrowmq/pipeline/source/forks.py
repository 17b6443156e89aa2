"""Finds where a stream continues after its broker's history changed. Runs on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from escrowmq.model.errors import Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.pipeline.source.offsets import (
    Loss,
    Offsets,
    QueueKey,
    Spans,
    StreamOffsets,
    from_json,
    losses,
    to_json,
)
from escrowmq.pipeline.source.positions import (
    Kept,
    Position,
    fork_of,
    is_other_store,
    not_ours,
    places,
    position_of,
)
from escrowmq.pipeline.source.queues import RESTARTED, KnownBrokers, TopicSelection, known

log = event_log(__name__)


class PlacedPosition(NamedTuple):
    """A stream's position in the histories that the brokers have now."""

    offsets: StreamOffsets
    #: Brokers whose store is not the one that the position belongs to.
    of_others: frozenset[str]
    #: Queues that their broker no longer has, because its history went back.
    undone: frozenset[QueueKey]
    #: Queues of topics that were deleted and recreated since. They are read from their beginning.
    remade: frozenset[QueueKey] = frozenset()

    def is_of_other(self, queue: QueueKey) -> bool:
        """Whether the queue's broker has another store."""
        return queue.broker in self.of_others

    def losses(self, starts: Offsets, there: Spans) -> list[Loss]:
        """Queues that cannot be read from these offsets."""
        return [
            one for one in losses(starts, there, self.of_others) if one.queue not in self.undone
        ]


def placed(
    kept: Kept, found: KnownBrokers, topics: TopicSelection, patience_s: float
) -> PlacedPosition:
    """Set each position that is beyond a fork to where its queue ended at the fork."""
    at = places(kept)
    for broker, by_topic in at.items():
        if not isinstance(by_topic, Mapping):
            raise not_ours(broker, "messages")
    offsets = from_json(at)
    of_others, undone, remade = set(), set(), set()
    for broker, one in kept.items():
        position = position_of(one)
        seen, there = position.sight, found.sights.get(broker)
        if is_other_store(seen, there):
            of_others.add(broker)
        mine = {key: offset for key, offset in offsets.items() if key.broker == broker}
        again = {key for key in mine if _is_remade(position, key, found)}
        fork = fork_of(broker, seen, there)
        if fork is None:
            remade |= again
            continue
        ends = _ends(found, broker, topics, patience_s, fork.log_offset)
        # If a topic was deleted only in the other history, its messages before the fork still
        # exist. The stream continues after them.
        moved = {
            key: ends.get(key, 0) if key in again else min(offset, ends.get(key, 0))
            for key, offset in mine.items()
        }
        undone |= moved.keys() - ends.keys()
        offsets |= moved
        if moved != mine:
            log.warning("history_forked", extra={"broker": broker, "log_offset": fork.log_offset})
    for key in remade:
        del offsets[key]
    if remade:
        names = sorted({key.topic for key in remade})
        log.warning("topic_remade", extra={"topics": names})
    return PlacedPosition(
        to_json(offsets, kept), frozenset(of_others), frozenset(undone), frozenset(remade)
    )


def _is_remade(position: Position, key: QueueKey, found: KnownBrokers) -> bool:
    born = found.born.get((key.broker, key.topic))
    return born is not None and position.is_before(key.topic, born)


def _ends(
    found: KnownBrokers, broker: str, topics: TopicSelection, patience_s: float, log_offset: int
) -> dict[QueueKey, int]:
    """The ends of a broker's queues when its log ended at `log_offset`."""
    then = known([found.addresses[broker]], topics, patience_s, until_log=log_offset)
    sight = then.sights.get(broker)
    if sight is None or sight.lineage.epoch != found.sights[broker].lineage.epoch:
        raise Unavailable("broker_restarted", RESTARTED, broker=broker)
    return {key: span.end for key, span in then.spans.items()}
