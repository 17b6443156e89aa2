"""Plain writes with ``format("escrowmq")``: each message exactly once, or none of them."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.spark.faulty_sink import FORMAT, FaultySink
from tests.unit.pipeline.losing import LosingProxy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "orders"


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


def rows(spark: SparkSession, count: int = 20, partitions: int = 2) -> DataFrame:
    """Return messages with the bodies 0, 1, 2, …"""
    return spark.range(0, count, 1, partitions).select(F.col("id").cast("string").alias("body"))


def write(frame: DataFrame, broker: InProcessBroker | str, **options: str) -> None:
    address = broker if isinstance(broker, str) else broker.broker_address
    writer = frame.write.format(options.pop("format", "escrowmq")).mode("append")
    writer.options(broker=address, **{"topic": TOPIC, **options}).save()


def write_with_fault(frame: DataFrame, broker: InProcessBroker, fault: str, **options: str) -> None:
    frame.sparkSession.dataSource.register(FaultySink)
    write(frame, broker, format=FORMAT, fault=fault, **options)


def bodies(broker: InProcessBroker, topic: str = TOPIC) -> Counter[str]:
    return Counter(message.body.decode() for message in broker.messages(topic))


def each_once(count: int) -> Counter[str]:
    return Counter(str(number) for number in range(count))


def test_each_row_is_a_message(spark: SparkSession, broker: InProcessBroker) -> None:
    write(rows(spark, 1_000, 3), broker)
    assert bodies(broker) == each_once(1_000)
    assert len({message.message_id for message in broker.messages(TOPIC)}) == 1_000
    assert broker.undecided() == []


def test_columns_become_what_consumers_see(spark: SparkSession, broker: InProcessBroker) -> None:
    frame = spark.createDataFrame(
        [(bytearray(b"\x00\xff"), "mails", "k", ["x", "y"], "paid", {"colour": "red"}, 7)],
        "body binary, topic string, key string, keys array<string>, tags string,"
        " properties map<string,string>, born_at_ms bigint",
    )
    writer = frame.write.format("escrowmq").mode("append")
    writer.option("broker", broker.broker_address).save()
    (message,) = broker.messages("mails")
    assert (message.body, message.keys, message.tag) == (b"\x00\xff", ("k", "x", "y"), "paid")
    assert (message.properties["colour"], message.born_at_ms) == ("red", 7)


def test_a_message_that_was_read_can_be_written_with_its_time(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    born = "timestamp_millis(1700000000123)"
    write(session.sql(f"SELECT 'a' AS body, {born} AS born_at"), broker)
    read = session.read.format("escrowmq").options(broker=broker.broker_address, topic=TOPIC)
    write(read.load().select("body", "keys", "tags", "born_at"), broker, topic="copies")
    assert [one.born_at_ms for one in broker.messages("copies")] == [1_700_000_000_123]


@pytest.mark.parametrize("mode", [None, "error", "ignore", "overwrite"])
def test_a_mode_that_is_not_append_is_refused_with_the_mode_to_use(
    spark: SparkSession, broker: InProcessBroker, mode: str | None
) -> None:
    writer = rows(spark).write.format("escrowmq").mode(mode)
    with pytest.raises(PySparkException) as refused:
        writer.options(broker=broker.broker_address, topic=TOPIC).save()
    assert '.mode("append")' in "".join(traceback.format_exception(refused.value))
    assert len(getattr(refused.value, "__notes__", ())) <= 1
    assert broker.messages(TOPIC) == []


def test_the_errors_of_other_formats_are_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException) as refused:
        rows(spark).write.format("parquet").save(str(tmp_path))
    assert not hasattr(refused.value, "__notes__")


def test_rows_with_one_key_stay_in_one_queue_and_in_order(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    keyed = rows(spark, 200).withColumn("key", F.concat(F.lit("k"), F.col("body").cast("int") % 7))
    write(
        keyed.repartitionByRange(2, "key").sortWithinPartitions(F.col("body").cast("int")), broker
    )
    by_key: dict[str, list[Any]] = {}
    for message in sorted(broker.messages(TOPIC), key=lambda one: one.queue_offset):
        by_key.setdefault(message.key, []).append((message.queue_id, int(message.body)))
    assert len(by_key) == 7
    for places in by_key.values():
        assert len({queue_id for queue_id, _ in places}) == 1
        assert places == sorted(places)


def test_an_empty_dataframe_is_written_too(spark: SparkSession, broker: InProcessBroker) -> None:
    write(rows(spark, 0), broker)
    assert bodies(broker) == Counter()


def test_a_batch_with_a_name_is_written_once_however_often_it_runs(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    for _ in range(3):
        write(rows(spark), broker, appId="nightly", batchId="2026-11-16")
    assert bodies(broker) == each_once(20)
    assert broker.undecided() == []
    write(rows(spark), broker, appId="nightly", batchId="2026-11-17")
    assert bodies(broker) == each_once(20) + each_once(20)


# Failures.


def test_a_task_that_is_tried_again_leaves_no_double(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    """Its first try had written all its rows, and no commit names that attempt."""
    once = str(tmp_path / "once")
    write_with_fault(rows(spark), broker, "write.after:raise", once=once)
    assert bodies(broker) == each_once(20)
    (orphan,) = broker.undecided()
    assert orphan.group == "%SINK%spark"


def test_a_task_that_fails_in_the_middle_takes_back_what_it_held(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    once = str(tmp_path / "once")
    write_with_fault(rows(spark, 100), broker, "write.rows:raise", once=once)
    assert bodies(broker) == each_once(100)
    assert broker.undecided() == []


def test_a_task_that_fails_for_good_leaves_nothing_visible(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    with pytest.raises(PySparkException, match=r"planted at write\.rows"):
        write_with_fault(rows(spark), broker, "write.rows:raise", appId="a", batchId="b")
    assert bodies(broker) == Counter()
    write(rows(spark), broker, appId="a", batchId="b")
    assert bodies(broker) == each_once(20)
    assert broker.undecided() == []


def test_a_commit_that_fails_before_it_decides_leaves_nothing_visible(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    with pytest.raises(PySparkException, match=r"planted at commit\.before"):
        write_with_fault(rows(spark), broker, "commit.before:raise", appId="a", batchId="b")
    assert bodies(broker) == Counter()
    # The abort left nothing that blocks the next run.
    assert broker.undecided() == []
    write(rows(spark), broker, appId="a", batchId="b")
    assert bodies(broker) == each_once(20)


def test_an_abort_after_a_commit_undoes_nothing(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    with pytest.raises(PySparkException, match=r"planted at commit\.after"):
        write_with_fault(rows(spark), broker, "commit.after:raise", appId="a", batchId="b")
    assert bodies(broker) == each_once(20)
    write(rows(spark), broker, appId="a", batchId="b")
    assert bodies(broker) == each_once(20)
    assert broker.undecided() == []


def test_a_failing_abort_does_not_hide_the_lost_answer(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    """The connection to the broker breaks at the commit."""

    def loses(code: NativeCode, _: int) -> bool:
        return code in (NativeCode.DECIDE_BATCH, NativeCode.LIST_TRANSACTIONS)

    with (
        LosingProxy(broker.broker_address, loses) as way,
        pytest.raises(PySparkException, match=r"answer_lost.*DECIDE_BATCH"),
    ):
        write(rows(spark), way.address, timeoutMs="200")
    # The batch was decided, and a repeated run under its name learns that.
    assert bodies(broker) == each_once(20)


def test_every_answer_may_get_lost_once(spark: SparkSession, broker: InProcessBroker) -> None:
    with LosingProxy(broker.broker_address, lambda _, number: number % 2 == 0) as way:
        write(rows(spark, 1_000), way.address)
    assert bodies(broker) == each_once(1_000)
    assert broker.undecided() == []


def test_a_broker_that_is_away_is_named(spark: SparkSession, broker: InProcessBroker) -> None:
    address = broker.broker_address
    broker.stop()
    with pytest.raises(PySparkException, match=f"broker_unreachable.*{address}"):
        write(rows(spark), address, timeoutMs="100")


# Refusals.


def test_a_wrong_option_is_named_with_what_it_may_be(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    with pytest.raises(PySparkException, match=r"bad_option: .*did you mean topic\?.*topik"):
        write(rows(spark, 1, 1), broker, topik=TOPIC)


def test_messages_cannot_be_overwritten(spark: SparkSession, broker: InProcessBroker) -> None:
    writer = rows(spark).write.format("escrowmq").mode("overwrite")
    with pytest.raises(PySparkException, match=r"bad_option: append.*mode"):
        writer.options(broker=broker.broker_address, topic=TOPIC).save()


def test_a_row_that_cannot_be_a_message_is_named(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    frame = rows(spark, 10, 1).select(F.when(F.col("body") != "7", F.col("body")).alias("body"))
    with pytest.raises(PySparkException, match=r"body_illegal.*column='body', row=7"):
        write(frame, broker)
    assert bodies(broker) == Counter()
    assert broker.undecided() == []
