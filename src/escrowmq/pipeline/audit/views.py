"""The brokers' evidence as DataFrames, from the horizon up to the pins."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.pipeline.audit.pins import Pin
from escrowmq.pipeline.views.facts import BROKER_NAME, FIRST

FORMAT = "escrowmq"


@dataclass(frozen=True, slots=True)
class Views:
    """The evidence of the brokers at these pins. The DataFrames are lazy."""

    _spark: SparkSession
    _pins: Sequence[Pin]

    @property
    def addresses(self) -> dict[str, str]:
        """The brokers' addresses by name."""
        return {pin.name: pin.address for pin in self._pins}

    def halves(self, *columns: str) -> DataFrame:
        """Half messages."""
        return self._logged("halves", columns).where(self.is_within(FIRST))

    def ops(self, *columns: str) -> DataFrame:
        """Decisions."""
        return self._logged("ops", columns).where(self.is_within(FIRST))

    def events(self, *columns: str) -> DataFrame:
        """All events, not cut at the horizon: some of them have no half message."""
        return self._logged("events", columns)

    def transactions(self, *columns: str, states: str = "") -> DataFrame:
        """The state table at the time of the read, limited to the half offsets at the pins."""
        ends = {pin.name: pin.status.half_end for pin in self._pins}
        reader = self._reader("transactions", columns).option("endOffset", json.dumps(ends))
        starts = {pin.name: pin.known_from for pin in self._pins if pin.is_cut}
        if starts:
            reader = reader.option("startOffset", json.dumps(starts))
        return (reader.option("states", states) if states else reader).load()

    def visible(
        self, *columns: str, since: Sequence[Pin] = (), topics: Collection[str] = ()
    ) -> DataFrame | None:
        """Messages that consumers see, of these topics or of all; None if there are none.

        With ``since``, only messages that came after these earlier pins.
        """
        filled = {queue.topic for pin in self._pins for queue in pin.queues if queue.end}
        topics = filled & set(topics) if topics else filled
        if not topics:
            return None
        read = (
            self._spark.read.format(FORMAT)
            .option("broker", ",".join(self.addresses.values()))
            .option("topic", ",".join(sorted(topics)))
            .option("endingOffsets", _ends(self._pins, topics))
            .option("failOnDataLoss", "false")
            .option("columns", ",".join(columns))
        )
        if since:
            read = read.option("startingOffsets", _ends(since, topics))
        return read.load().withColumnRenamed("broker", BROKER_NAME)

    def _logged(self, view: str, columns: Sequence[str]) -> DataFrame:
        starts = {pin.name: pin.log_start for pin in self._pins}
        ends = {pin.name: pin.log_end for pin in self._pins}
        return (
            self._reader(view, columns)
            .option("startOffset", json.dumps(starts))
            .option("endOffset", json.dumps(ends))
            # Retention may run during the read. The caller checks the log's start again.
            .option("failOnDataLoss", "false")
            .load()
        )

    def _reader(self, view: str, columns: Sequence[str]) -> DataFrameReader:
        reader = self._spark.read.format(FORMAT).option("view", view)
        reader = reader.option("broker", ",".join(self.addresses.values()))
        return reader.option("columns", ",".join((BROKER_NAME, *columns))) if columns else reader

    def is_within(self, offset: str) -> Column:
        """Whether it is not older than requested; the log may hold carried-forward older ones."""
        within = F.lit(True)  # noqa: FBT003 -- a column's value
        for pin in self._pins:
            if pin.is_cut:
                is_others = F.col(BROKER_NAME) != pin.name
                within &= is_others | (F.col(offset) >= pin.known_from)
        return within


def _ends(pins: Sequence[Pin], topics: Collection[str]) -> str:
    """The ends of these topics' queues, as an option of the message source.

    The source reports a queue as lost if it is named and not read.
    """
    ends: dict[str, dict[str, dict[str, int]]] = {}
    for pin in pins:
        for queue in pin.queues:
            if queue.topic not in topics:
                continue
            topic = ends.setdefault(pin.name, {}).setdefault(queue.topic, {})
            topic[str(queue.queue_id)] = queue.end
    return json.dumps(ends)
