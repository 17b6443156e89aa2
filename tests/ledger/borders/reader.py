"""A reader that keeps positions, as the archive does, while the broker's history goes back.

It keeps the history beside its positions.  Where the broker's history left that one, a position
beyond the fork continues at the end that the queue had there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from escrowmq.client.own_calls import OwnCalls
from escrowmq.model.lineage import Sight
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.sights import sight_of
from escrowmq.testing import InProcessBroker
from tests.ledger.borders.model import Wrong

Ends = Mapping[str, int]


class Reader:
    """Reads topics of one queue each."""

    def __init__(self, topics: tuple[str, ...]) -> None:
        self._topics = topics
        self._positions = dict.fromkeys(topics, 0)
        self._seen: Sight | None = None
        #: Epoch -> the ends of the queues where it begins.
        self._ends: dict[str, Ends] = {}
        self._read: Counter[int] = Counter()
        #: Those that were undecided at a fork: they may be read once more for each.
        self._again: Counter[int] = Counter()

    def started(self, broker: InProcessBroker) -> None:
        """A broker has started: nothing was decided since."""
        ends = {topic: len(broker.messages(topic)) for topic in self._topics}
        self._ends[_sight(broker).lineage.epoch] = ends

    def restored(self, broker: InProcessBroker) -> None:
        """It has gone back: what is not visible now may become visible a second time."""
        visible = {int(one.body) for topic in self._topics for one in broker.messages(topic)}
        for number in set(self._read) - visible:
            self._again[number] += 1

    def read(self, broker: InProcessBroker) -> int:
        """Go on; return how often a position went back to a fork."""
        there, moved = _sight(broker), 0
        fork = None if self._seen is None else there.fork(self._seen)
        for topic in self._topics:
            at = self._positions[topic]
            if fork is not None and at > self._ends[fork.id][topic]:
                at = self._ends[fork.id][topic]
                moved += 1
            found = [int(one.body) for one in broker.messages(topic)]
            self._read.update(found[at:])
            self._positions[topic] = len(found)
            skipped = [number for number in found if not self._read[number]]
            if skipped:
                raise Wrong(f"the reader skipped {skipped} of {topic}")
        self._seen = there
        doubled = [one for one, times in self._read.items() if times > 1 + self._again[one]]
        if doubled:
            raise Wrong(f"the reader read again: {doubled}")
        return moved


def _sight(broker: InProcessBroker) -> Sight:
    with OwnCalls(broker.broker_address) as calls:
        found = sight_of(calls.call(OwnCode.STATUS).header)
    assert found is not None
    return found
