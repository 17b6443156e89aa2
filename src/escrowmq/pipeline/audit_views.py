"""The evidence that brokers give, as DataFrames: each up to the pins, and not before the horizon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.pipeline.audit_pins import Pin, offsets_option
from escrowmq.pipeline.facts import BROKER_NAME, FIRST, HALF_OFFSET

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMAT = "escrowmq"


class Views:
    """What the brokers at these pins say.  Reads nothing by itself."""

    def __init__(self, spark: SparkSession, pins: Sequence[Pin]) -> None:
        self._spark = spark
        self._pins = pins

    def halves(self, *columns: str) -> DataFrame:
        """Half messages."""
        return self._of_log("halves", FIRST, columns)

    def ops(self, *columns: str) -> DataFrame:
        """Decisions."""
        return self._of_log("ops", FIRST, columns)

    def events(self, *columns: str) -> DataFrame:
        """What happened, not cut at the horizon: some of it has no half message."""
        return self._logged("events", columns)

    def transactions(self, *columns: str, states: str = "") -> DataFrame:
        """The state table as it is when it is read, as far as it was filled at the pins."""
        ends = {pin.name: pin.status.half_end for pin in self._pins}
        reader = self._reader("transactions", columns).option("endOffset", offsets_option(ends))
        starts = {pin.name: pin.known_from for pin in self._pins if pin.is_cut}
        if starts:
            reader = reader.option("startOffset", offsets_option(starts))
        return (reader.option("states", states) if states else reader).load()

    def _of_log(self, view: str, offset: str, columns: Sequence[str]) -> DataFrame:
        return self._logged(view, columns).where(self._is_within(offset))

    def _logged(self, view: str, columns: Sequence[str]) -> DataFrame:
        starts = {pin.name: pin.log_start for pin in self._pins}
        ends = {pin.name: pin.log_end for pin in self._pins}
        return (
            self._reader(view, columns)
            .option("startOffset", offsets_option(starts))
            .option("endOffset", offsets_option(ends))
            # Retention may go on while this is read: whoever judges looks at the log's start again.
            .option("failOnDataLoss", "false")
            .load()
        )

    def _reader(self, view: str, columns: Sequence[str]):  # noqa: ANN202
        addresses = ",".join(pin.address for pin in self._pins)
        reader = self._spark.read.format(FORMAT).option("view", view).option("broker", addresses)
        return reader.option("columns", ",".join((BROKER_NAME, *columns))) if columns else reader

    def _is_within(self, offset: str) -> Column:
        """Whether it is not older than was asked for; copies of older ones may stand in the log."""
        within = F.lit(True)  # noqa: FBT003 -- a column's value
        for pin in self._pins:
            if pin.is_cut:
                is_others = F.col(BROKER_NAME) != pin.name
                within &= is_others | (F.col(offset) >= pin.known_from)
        return within
