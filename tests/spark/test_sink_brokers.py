"""Writes over several brokers: each message exactly once on all of them together, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812

from escrowmq.look_up.ledgers import Ledgers
from escrowmq.pipeline.audit.compare import AuditRequest
from escrowmq.pipeline.audit.job import run_audit
from escrowmq.pipeline.settle.settling import settle_round
from escrowmq.testing import InProcessBroker
from tests.spark.faulty_sink import FORMAT, FaultySink
from tests.spark.streams import TOPIC, Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from escrowmq.pipeline.settle.round_summary import RoundSummary

NAMED = {"appId": "nightly", "batchId": "2026-11-17"}
#: Acts like a driver that is killed there: no abort runs.
AND_DIES = ",abort:skip"


@pytest.fixture
def brokers() -> Iterator[list[InProcessBroker]]:
    with ExitStack() as started:
        yield [started.enter_context(InProcessBroker(name=name)) for name in "abc"]


def addresses(brokers: list[InProcessBroker]) -> str:
    return ",".join(broker.broker_address for broker in brokers)


def rows(spark: SparkSession, count: int = 60, partitions: int = 3) -> DataFrame:
    """Return messages with the bodies 0, 1, 2, …"""
    return spark.range(0, count, 1, partitions).select(F.col("id").cast("string").alias("body"))


def write(frame: DataFrame, brokers: list[InProcessBroker], **options: str) -> None:
    if "fault" in options:
        frame.sparkSession.dataSource.register(FaultySink)
    writer = frame.write.format(FORMAT if "fault" in options else "escrowmq").mode("append")
    writer.options(broker=addresses(brokers), **{"topic": TOPIC, **options}).save()


def write_and_die(
    frame: DataFrame, brokers: list[InProcessBroker], step: str, **options: str
) -> None:
    with pytest.raises(PySparkException, match=f"planted at {step}"):
        write(frame, brokers, fault=f"{step}:raise{AND_DIES}", **options)


def bodies(*brokers: InProcessBroker) -> Counter[str]:
    return Counter(one.body.decode() for broker in brokers for one in broker.messages(TOPIC))


def each_once(count: int = 60) -> Counter[str]:
    return Counter(str(number) for number in range(count))


def undecided(brokers: list[InProcessBroker]) -> list[int]:
    return [len(broker.undecided()) for broker in brokers]


def keyed_stream(spark: SparkSession, folder: Path, brokers: list[InProcessBroker]) -> Stream:
    """Return a stream with rows for every broker in every batch."""
    stream = Stream(spark, folder, addresses(brokers))
    stream.columns = ("value", "value AS key")
    return stream


def settle(spark: SparkSession, brokers: list[InProcessBroker] | str) -> RoundSummary:
    at = brokers if isinstance(brokers, str) else addresses(brokers)
    return settle_round(spark, at.split(","), Ledgers({}))


def test_rows_are_spread_and_each_is_a_message_once(
    spark: SparkSession, brokers: list[InProcessBroker]
) -> None:
    write(rows(spark), brokers)
    assert bodies(*brokers) == each_once()
    assert [len(bodies(broker)) for broker in brokers] == [20, 20, 20]
    assert undecided(brokers) == [0, 0, 0]


def test_a_batch_may_have_rows_for_one_broker_only(
    spark: SparkSession, brokers: list[InProcessBroker]
) -> None:
    write(rows(spark, 5, 1), brokers, **NAMED)
    assert bodies(brokers[0]) == each_once(5)
    assert undecided(brokers) == [0, 0, 0]
    # Home gets no rows, but still decides.
    keyed = rows(spark, 200).withColumn("key", F.col("body"))
    write(keyed, brokers[1:])
    of_last = [int(body) for body in bodies(brokers[2])]
    assert 50 <= len(of_last) <= 150
    only = keyed.where(F.col("key").isin([str(number) for number in of_last]))
    write(only, brokers[1:])
    assert bodies(brokers[2]) == Counter({str(number): 2 for number in of_last})
    assert undecided(brokers) == [0, 0, 0]


def test_rows_with_one_key_stay_at_one_broker_and_in_order_from_batch_to_batch(
    spark: SparkSession, brokers: list[InProcessBroker]
) -> None:
    numbered = rows(spark, 90, 2).withColumn("key", F.concat(F.lit("k"), F.col("body") % 9))
    first = numbered.where(F.col("body").cast("int") < 45)
    second = numbered.where(F.col("body").cast("int") >= 45)
    for half, order in ((first, brokers), (second, brokers[::-1])):
        by_key = half.repartitionByRange(2, "key")
        write(by_key.sortWithinPartitions(F.col("body").cast("int")), order, appId="keys")
    places: dict[str, list[tuple[int, int, int]]] = {}
    for number, broker in enumerate(brokers):
        for one in sorted(broker.messages(TOPIC), key=lambda one: one.queue_offset):
            places.setdefault(one.key, []).append((number, one.queue_id, int(one.body)))
    assert len(places) == 9
    assert len({place[0] for found in places.values() for place in found}) > 1
    for found in places.values():
        assert len({place[:2] for place in found}) == 1
        assert [place[2] for place in found] == sorted(place[2] for place in found)


def test_a_batch_with_a_name_leaves_nothing_anywhere_when_it_runs_again(
    spark: SparkSession, brokers: list[InProcessBroker]
) -> None:
    # The home's position in the list does not matter.
    for order in (brokers, brokers[::-1], brokers[1:] + brokers[:1]):
        write(rows(spark), order, **NAMED)
    assert bodies(*brokers) == each_once()
    assert undecided(brokers) == [0, 0, 0]


@pytest.mark.parametrize("step", ["commit.before", "check.after"])
def test_a_driver_that_dies_before_the_decision_leaves_nothing_visible(
    spark: SparkSession, brokers: list[InProcessBroker], step: str
) -> None:
    write_and_die(rows(spark), brokers, step, **NAMED)
    left = undecided(brokers)
    assert all(left)
    # It might come back: nothing proves that it is dead.
    assert settle(spark, brokers).rolled_back == 0
    assert bodies(*brokers) == Counter()

    write(rows(spark), brokers, **NAMED)
    assert bodies(*brokers) == each_once()
    assert settle(spark, brokers).rolled_back == sum(left)
    assert undecided(brokers) == [0, 0, 0]
    assert bodies(*brokers) == each_once()


@pytest.mark.parametrize("step", ["decide.after", "forward.one"])
def test_a_driver_that_dies_after_the_decision_has_decided(
    spark: SparkSession, brokers: list[InProcessBroker], step: str
) -> None:
    write_and_die(rows(spark), brokers, step, **NAMED)
    left = undecided(brokers)
    assert left[0] == 0
    assert sum(bool(one) for one in left) == (2 if step == "decide.after" else 1)
    done = settle(spark, brokers)
    assert (done.committed, done.rolled_back, done.away) == (sum(left), 0, ())
    assert bodies(*brokers) == each_once()
    assert undecided(brokers) == [0, 0, 0]

    write(rows(spark), brokers, **NAMED)
    assert bodies(*brokers) == each_once()


def test_nothing_is_decided_while_home_is_away(
    spark: SparkSession, brokers: list[InProcessBroker]
) -> None:
    write_and_die(rows(spark), brokers, "decide.after", **NAMED)
    home, left, at = brokers[0], undecided(brokers), addresses(brokers)
    home.stop()
    done = settle(spark, at)
    assert (done.committed, done.rolled_back) == (0, 0)
    assert done.away == ("a", at.split(",")[0])[::-1]
    assert done.unknown == {"home_away": sum(left)}
    home.start()
    assert settle(spark, brokers).committed == sum(left)
    assert bodies(*brokers) == each_once()


def test_two_brokers_with_the_home_s_name_decide_nothing(
    spark: SparkSession, brokers: list[InProcessBroker]
) -> None:
    write_and_die(rows(spark), brokers, "decide.after", **NAMED)
    left = undecided(brokers)
    with InProcessBroker(name="a") as twin:
        done = settle(spark, [*brokers, twin])
    assert (done.committed, done.rolled_back, done.away) == (0, 0, ("a",))
    assert done.unknown == {"home_away": sum(left)}


def test_an_abort_leaves_nothing_anywhere(
    spark: SparkSession, brokers: list[InProcessBroker]
) -> None:
    with pytest.raises(PySparkException, match=r"planted at commit\.before"):
        write(rows(spark), brokers, fault="commit.before:raise", **NAMED)
    assert undecided(brokers) == [0, 0, 0]
    assert bodies(*brokers) == Counter()


def test_an_abort_after_the_decision_forwards_it(
    spark: SparkSession, brokers: list[InProcessBroker]
) -> None:
    with pytest.raises(PySparkException, match=r"planted at decide\.after"):
        write(rows(spark), brokers, fault="decide.after:raise", **NAMED)
    assert bodies(*brokers) == each_once()
    assert undecided(brokers) == [0, 0, 0]


def test_a_driver_that_comes_too_late_is_refused_as_a_whole(
    spark: SparkSession, brokers: list[InProcessBroker], tmp_path: Path
) -> None:
    """A later run has begun, and settle has rolled back the earlier run's half messages at home."""
    go_on = tmp_path / "go-on"

    def late() -> None:
        # Made like this, Spark also makes the session the active one of this thread.
        frame = spark.createDataFrame([(str(number),) for number in range(60)], "body string")
        hangs = {"fault": "commit.before:hang", "until": str(go_on)}
        write(frame.repartition(3), brokers, **hangs, **NAMED)

    with ThreadPoolExecutor(1) as threads:
        old = threads.submit(late)
        try:
            while undecided(brokers) != [3, 1, 1]:
                assert not old.done()
            write_and_die(rows(spark), brokers, "commit.before", **NAMED)
            assert undecided(brokers) == [6, 2, 2]
            assert settle(spark, brokers).rolled_back == 5
        finally:
            go_on.touch()
        with pytest.raises(PySparkException, match="attempt_not_prepared"):
            old.result()
    assert bodies(*brokers) == Counter()
    assert undecided(brokers) == [3, 1, 1]
    write(rows(spark), brokers, **NAMED)
    assert bodies(*brokers) == each_once()


def test_an_abandoned_batch_is_rolled_back_on_every_broker_after_a_day(
    spark: SparkSession, brokers: list[InProcessBroker]
) -> None:
    write_and_die(rows(spark), brokers, "check.after", **NAMED)
    for other in brokers[1:]:
        other.advance(seconds=48 * 3_600)
    # The age of the parts does not count.
    assert settle(spark, brokers).rolled_back == 0
    brokers[0].advance(seconds=24 * 3_600)
    assert settle(spark, brokers).rolled_back == 5
    assert undecided(brokers) == [0, 0, 0]


def test_a_task_that_is_tried_again_leaves_no_double(
    spark: SparkSession, brokers: list[InProcessBroker], tmp_path: Path
) -> None:
    once = str(tmp_path / "once")
    write(rows(spark), brokers, fault="write.after:raise", once=once, **NAMED)
    assert bodies(*brokers) == each_once()
    left = undecided(brokers)
    assert left[0] == 1
    assert settle(spark, brokers).rolled_back == sum(left)
    assert undecided(brokers) == [0, 0, 0]


def test_an_audit_of_all_brokers_finds_nothing(
    spark: SparkSession, brokers: list[InProcessBroker]
) -> None:
    write(rows(spark), brokers)
    write_and_die(rows(spark), brokers, "forward.one", **NAMED)
    settle(spark, brokers)
    write_and_die(rows(spark), brokers, "check.after", appId="left")
    report = run_audit(spark, AuditRequest(brokers=tuple(addresses(brokers).split(","))))
    assert report.findings == []


# Streams.


@pytest.mark.parametrize("step", ["commit.before", "check.after", "decide.after", "forward.one"])
def test_a_stream_writes_every_batch_once_wherever_its_driver_dies(
    spark: SparkSession, brokers: list[InProcessBroker], tmp_path: Path, step: str
) -> None:
    stream = keyed_stream(spark, tmp_path, brokers)
    stream.add(*range(30))
    stream.run()
    stream.add(*range(30, 60))
    with pytest.raises(StreamingQueryException, match=f"planted at {step}"):
        stream.run(fault=f"{step}:raise{AND_DIES}")
    stream.add(*range(60, 70))
    stream.run()
    settle(spark, brokers)
    assert bodies(*brokers) == each_once(70)
    assert undecided(brokers) == [0, 0, 0]


# Refusals.


def test_an_app_id_that_two_brokers_know_is_refused(
    spark: SparkSession, brokers: list[InProcessBroker]
) -> None:
    for broker in brokers[1:]:
        write(rows(spark, 5, 1), [broker], **NAMED)
    with pytest.raises(PySparkException, match=r"app_id_at_two_brokers.*'b', 'c'"):
        write(rows(spark), brokers, **NAMED)
    # With only one of these brokers in the list, home is known.
    write(rows(spark, 5, 1), brokers[:2], **NAMED)
    assert bodies(*brokers) == each_once(5) + each_once(5)


def test_a_topic_that_one_broker_lacks_is_named_with_it_and_nothing_is_written(
    spark: SparkSession, brokers: list[InProcessBroker]
) -> None:
    with InProcessBroker(name="strict", auto_create=False) as strict:
        to = [brokers[0], strict]
        for frame, options in (
            (rows(spark), {}),
            (rows(spark).withColumn("topic", F.lit(TOPIC)), {"topic": ""}),
        ):
            with pytest.raises(PySparkException, match=r"topic_unknown.*broker='strict'"):
                write(frame, to, **options)
        assert undecided(to) == [0, 0]
