"""A reader that keeps its position while the broker's history goes back.

It is the pipeline's own stream, driven as Spark would drive it. It must skip no visible message,
and must not read a message twice that stayed visible.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.source.message_columns import spark_schema
from escrowmq.pipeline.source.message_options import stream_options
from escrowmq.pipeline.source.message_reading import RangesPartition
from escrowmq.pipeline.source.offsets import from_json
from escrowmq.pipeline.source.positions import Kept, places
from escrowmq.pipeline.source.stream import MessageStreamReader
from escrowmq.pipeline.spark_api import ReadAllAvailable
from escrowmq.testing import InProcessBroker
from tests.ledger.borders.model import Wrong

BODY = "body"


class Reader:
    """Reads topics from their first message."""

    def __init__(self, topics: tuple[str, ...]) -> None:
        self._topics = topics
        self._kept: Kept | None = None
        self._read: Counter[int] = Counter()
        #: How often a message may be read again: once for each restore that made it invisible.
        self._again: Counter[int] = Counter()

    def restored(self, broker: InProcessBroker) -> None:
        """Note a restore: a message that is not visible now may become visible a second time."""
        for number in set(self._read) - set(self._visible(broker)):
            self._again[number] += 1

    def read(self, broker: InProcessBroker) -> int:
        """Read on; return how often a position went back to a fork."""
        moved = self._batch(broker)
        skipped = [number for number in self._visible(broker) if not self._read[number]]
        if skipped:
            raise Wrong(f"the reader skipped {skipped}")
        doubled = [one for one, times in self._read.items() if times > 1 + self._again[one]]
        if doubled:
            raise Wrong(f"the reader read again: {doubled}")
        return moved

    def _visible(self, broker: InProcessBroker) -> Iterator[int]:
        return (int(one.body) for topic in self._topics for one in broker.messages(topic))

    def _batch(self, broker: InProcessBroker) -> int:
        options = {"broker": broker.broker_address, "topic": ",".join(self._topics)}
        stream = MessageStreamReader(stream_options(options), spark_schema((BODY,)))
        start = stream.initialOffset() if self._kept is None else self._kept
        try:
            end = stream.latestOffset(start, ReadAllAvailable())
            planned = stream.partitions(start, end)
        except RequestRefused as error:
            raise Wrong(f"the reader cannot go on: {error}") from error
        for partition in planned:
            self._take(stream, partition)
        # Serialize as a checkpoint does.
        self._kept = json.loads(json.dumps(end))
        begun = from_json(places(end))
        begun |= {one.queue: one.start for partition in planned for one in partition.ranges}
        return sum(begun[key] < at for key, at in from_json(places(start)).items())

    def _take(self, stream: MessageStreamReader, partition: RangesPartition) -> None:
        for batch in stream.read(partition):
            self._read.update(map(int, batch.column(BODY).to_pylist()))
