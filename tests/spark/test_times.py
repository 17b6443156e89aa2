"""Times are TIMESTAMP columns: in any time zone, as watermarks, in pandas and in Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.testing import InProcessBroker
from tests.spark import day
from tests.spark.topics import BORN_AT_MS, read, row, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A zone that no usual test machine has: UTC-3:30, with daylight saving time.
ZONE = "America/St_Johns"
MESSAGES = 5


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    """Yield one message per minute, from a round minute plus 7 ms."""
    with InProcessBroker() as broker:
        now_ms = broker.clock.now_ms()
        broker.advance(ms=60_000 - now_ms % 60_000 + 7)
        for number in range(MESSAGES):
            send(broker, row(b"%d" % number))
            broker.advance(seconds=60)
        yield broker


@pytest.fixture(scope="module")
def abroad(spark: SparkSession) -> SparkSession:
    """Return a session of the same Spark in another time zone."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", ZONE)
    return session


def first_at(broker: InProcessBroker) -> datetime:
    """Return the time when the first message became visible."""
    now = datetime.fromtimestamp(broker.clock.now_ms() / 1_000, UTC)
    return now - timedelta(minutes=MESSAGES)


def ended(stream: DataFrame, folder: Path) -> DataFrame:
    """Run a stream up to the current end; return the rows that it appended."""
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    query.awaitTermination()
    return stream.sparkSession.read.parquet(str(folder / "table"))


def test_times_are_timestamps_to_the_millisecond(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    frame = read(spark, broker)
    types = dict(frame.dtypes)
    assert [types[name] for name in ("born_at", "stored_at", "visible_at")] == ["timestamp"] * 3
    assert not [name for name in types if name.endswith("_ms")]
    told = frame.select(F.unix_micros("born_at"), F.unix_micros("visible_at")).first()
    assert told == (BORN_AT_MS * 1_000, int(first_at(broker).timestamp() * 1e6))


def test_numbers_and_timestamps_are_the_same_instants(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    frame = read(spark, broker, columns="visible_at,visible_at_ms,stored_at,stored_at_ms")
    differ = "unix_millis(visible_at) != visible_at_ms OR unix_millis(stored_at) != stored_at_ms"
    assert (frame.count(), frame.where(differ).count()) == (MESSAGES, 0)


def test_literals_are_of_the_time_zone_of_the_session(
    spark: SparkSession, abroad: SparkSession, broker: InProcessBroker
) -> None:
    third = first_at(broker) + timedelta(minutes=2)
    for session, zone in ((spark, UTC), (abroad, ZoneInfo(ZONE))):
        literal = f"TIMESTAMP '{third.astimezone(zone):%Y-%m-%d %H:%M:%S.%f}'"
        frame = read(session, broker)
        assert frame.where(f"visible_at < {literal}").count() == 2
        assert frame.where(f"visible_at = {literal}").count() == 1
        minute = f"BETWEEN {literal} AND {literal} + INTERVAL 60 SECONDS"
        assert frame.where(f"visible_at {minute}").count() == 2
        # This literal includes the zone.
        assert frame.where(f"visible_at >= TIMESTAMP '{third.isoformat()}'").count() == 3
        # A Python datetime is an instant, too.
        assert frame.where(F.col("visible_at") > F.lit(third)).count() == 2


@pytest.mark.parametrize("is_pushed", ["true", "false"])
def test_a_filter_on_time_leaves_the_next_query_alone(
    spark: SparkSession, broker: InProcessBroker, is_pushed: str
) -> None:
    # Spark 4.3 reuses a Python reader's result for a pushed filter in later queries of the same
    # DataFrame, which then miss rows. Therefore our readers accept no filters.
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", is_pushed)
    frame = read(session, broker)
    third = f"TIMESTAMP '{(first_at(broker) + timedelta(minutes=2)).isoformat()}'"
    assert frame.where(f"visible_at >= {third}").count() == 3
    assert frame.count() == MESSAGES
    assert frame.where(f"visible_at = {third} OR queue_offset = 0").count() == 2
    assert frame.where(f"visible_at IN ({third})").count() == 1


def test_a_session_shows_times_in_its_own_zone(
    abroad: SparkSession, broker: InProcessBroker
) -> None:
    shown = read(abroad, broker).selectExpr("cast(min(visible_at) AS string)").first()
    first = first_at(broker).astimezone(ZoneInfo(ZONE))
    assert shown == (f"{first:%Y-%m-%d %H:%M:%S}.007",)


@pytest.mark.parametrize("is_arrow", [True, False])
def test_pandas_gets_times_in_the_zone_of_the_session(
    abroad: SparkSession, broker: InProcessBroker, *, is_arrow: bool
) -> None:
    session = abroad.newSession()
    session.conf.set("spark.sql.session.timeZone", ZONE)
    session.conf.set("spark.sql.execution.arrow.pyspark.enabled", str(is_arrow).lower())
    frame: Any = read(session, broker, columns="queue_offset,visible_at").toPandas()
    assert str(frame.dtypes["visible_at"]).startswith("datetime64")
    first = first_at(broker).astimezone(ZoneInfo(ZONE)).replace(tzinfo=None)
    assert frame["visible_at"].min().to_pydatetime() == first


def test_arrow_gets_instants(abroad: SparkSession, broker: InProcessBroker) -> None:
    table = read(abroad, broker, columns="visible_at").toArrow()
    assert table["visible_at"].to_pylist()[0] == first_at(broker)


def test_a_time_that_nothing_can_hold_is_null_and_its_number_stays(spark: SparkSession) -> None:
    odd = (2**63 - 1, -(2**62), 253_402_300_800_000)
    with InProcessBroker() as broker:
        send(broker, *(msgspec.structs.replace(row(), born_at_ms=one) for one in (*odd, 5)))
        frame = read(spark, broker, columns="queue_offset,born_at,born_at_ms,visible_at")
        rows = frame.orderBy("queue_offset").collect()
        assert [one.born_at_ms for one in rows] == [*odd, 5]
        assert [one.born_at is None for one in rows] == [True, True, True, False]
        assert None not in [one.visible_at for one in rows]
        pandas: Any = frame.toPandas()
        assert pandas["born_at"].isna().tolist() == [True, True, True, False]


def test_a_schema_may_name_a_timestamp_and_nothing_else_for_it(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    def given(schema: str) -> DataFrame:
        reader = spark.read.format("escrowmq").schema(schema)
        return reader.options(broker=broker.broker_address, topic="orders").load()

    assert given("visible_at timestamp, visible_at_ms bigint").count() == MESSAGES
    for wrong in ("visible_at timestamp_ntz", "visible_at bigint", "visible_at string"):
        with pytest.raises(AnalysisException, match=r"bad_option.*visible_at timestamp"):
            given(wrong).count()


def test_a_watermark_closes_windows_of_messages(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    stream = spark.readStream.format("escrowmq").options(
        broker=broker.broker_address, topic="orders", maxRowsPerBatch=2
    )
    counts = (
        stream.load()
        .withWatermark("visible_at", "30 seconds")
        .groupBy(F.window("visible_at", "1 minute"))
        .count()
        .select(F.col("window.start").alias("start"), "count")
    )
    found = ended(counts, tmp_path)
    first = first_at(broker).replace(second=0, microsecond=0)
    minutes = [first + timedelta(minutes=number) for number in range(MESSAGES)]
    # The last two windows stay open: the watermark is 30 seconds behind the newest message.
    starts = found.orderBy("start").selectExpr("unix_micros(start)", "count").collect()
    assert starts == [(int(one.timestamp() * 1e6), 1) for one in minutes[:-2]]


def test_a_watermark_closes_windows_of_events(spark: SparkSession, tmp_path: Path) -> None:
    with InProcessBroker() as broker:
        for name in ("first", "second", "third"):
            day.live(broker.broker_address, named=name)
            broker.advance(seconds=3_600)
        options = {"view": "events", "broker": broker.broker_address}
        stream = spark.readStream.format("escrowmq").options(**options, maxBytesPerBatch=8_192)
        whole = spark.read.format("escrowmq").options(**options).load()
        of_hour = F.window("happened_at", "1 hour").alias("hour")
        counts = (
            stream.load()
            .withWatermark("happened_at", "1 minute")
            .groupBy(of_hour, "event")
            .count()
            .select("hour.start", "event", "count")
        )
        found = ended(counts, tmp_path).collect()
        expected = whole.groupBy(of_hour, "event").count().select("hour.start", "event", "count")
        last = expected.agg(F.max("start")).first()
        assert last is not None
        closed = expected.where(F.col("start") < F.lit(last[0])).collect()
    assert len(closed) > 2
    assert sorted(found) == sorted(closed)


def test_states_are_words_and_waits_are_real_or_null(spark: SparkSession) -> None:
    with InProcessBroker() as broker:
        day.live(broker.broker_address)
        reader = spark.read.format("escrowmq").options(
            view="transactions", broker=broker.broker_address
        )
        rows = reader.load().collect()
        codes = reader.option("columns", "half_offset,state,state_code").load().collect()
    assert {row.state for row in rows} >= {"prepared", "committed", "rolled_back"}
    labels = {0: "prepared", 1: "committed", 2: "rolled_back", 3: "parked"}
    assert all(labels[one.state_code] == one.state for one in codes)
    assert all((row.wait_ms is None) == (row.state != "prepared") for row in rows)
    assert all(row.wait_ms < 86_400_000 for row in rows if row.wait_ms is not None)


def test_undecided_covers_prepared_and_parked_transactions(spark: SparkSession) -> None:
    with InProcessBroker() as broker:
        day.live(broker.broker_address)
        reader = spark.read.format("escrowmq").options(
            view="transactions", broker=broker.broker_address
        )
        by_option = reader.option("states", "undecided").load()
        by_filter = reader.load().where("state IN ('prepared', 'parked')")
        offsets = sorted(row.half_offset for row in by_option.collect())
        assert offsets == sorted(row.half_offset for row in by_filter.collect())
        assert len(offsets) == 3
        both = reader.option("states", "undecided, parked, committed").load()
        assert {row.state for row in both.collect()} == {"prepared", "committed"}
