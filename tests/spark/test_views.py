"""Facts about transactions as DataFrames, from real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.settle.rules import label_column
from escrowmq.pipeline.views import facts
from escrowmq.pipeline.views.options import VIEWS
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import HalfRow
from escrowmq.testing import InProcessBroker
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.rules import DUES
from tests.spark import day

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    """Yield a broker after a day of transactions."""
    with InProcessBroker() as broker:
        day.live(broker.broker_address)
        yield broker


def view(
    spark: SparkSession, name: str, *brokers: InProcessBroker | str, **options: object
) -> DataFrame:
    """Read a view of these brokers or addresses."""
    addresses = [one if isinstance(one, str) else one.broker_address for one in brokers]
    reader = spark.read.format("escrowmq").option("view", name)
    reader = reader.option("broker", ",".join(addresses))
    for option, value in options.items():
        reader = reader.option(option, str(value))
    return reader.load()


@pytest.mark.parametrize("name", [name for name, view in VIEWS.items() if view.has_ranges])
def test_a_view_tells_what_the_broker_does_whatever_the_ranges(
    spark: SparkSession, broker: InProcessBroker, name: str
) -> None:
    size = {"rangeBytes": 300} if VIEWS[name].is_of_log else {"rangeRows": 3}
    whole, parts = view(spark, name, broker), view(spark, name, broker, **size)
    assert parts.rdd.getNumPartitions() > 2
    rows = sorted(whole.drop("as_of").collect(), key=str)
    assert sorted(parts.drop("as_of").collect(), key=str) == rows
    assert {(row.broker, row.broker_name) for row in rows} <= {(broker.broker_address, "broker-a")}


def test_halves_are_those_that_the_broker_lists(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    with NativeCalls(broker.broker_address) as calls:
        listed = list(calls.rows(NativeCode.LIST_HALVES))
    names = HalfRow.__struct_fields__
    told = view(spark, "halves", broker, columns=",".join(names)).orderBy("log_offset").collect()
    assert [tuple(row) for row in told] == [
        tuple(getattr(row, name) for name in names) for row in listed
    ]


def test_only_the_states_that_were_asked_for_are_told(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    undecided = view(spark, "transactions", broker, states="prepared, parked").collect()
    assert [row.transaction_id for row in undecided] == ["tx-7", "tx-8", "tx-9"]
    assert [row.message_count for row in undecided] == [1, 1, 2]
    decided = view(spark, "transactions", broker, states="committed,rolled_back")
    assert decided.groupBy(facts.STATE).count().orderBy(facts.STATE).collect() == [
        ("committed", 4),
        ("rolled_back", 3),
    ]


def test_a_range_of_offsets_is_told_alone(spark: SparkSession, broker: InProcessBroker) -> None:
    some = view(spark, "transactions", broker, startOffset=2, endOffset='{"broker-a": 4}')
    assert sorted(row.half_offset for row in some.collect()) == [2, 3]
    halves = view(spark, "halves", broker).orderBy("log_offset").collect()
    middle = view(spark, "halves", broker, startOffset=halves[4].log_offset)
    assert middle.count() == len(halves) - 4


def test_unrequested_columns_are_left_out(spark: SparkSession, broker: InProcessBroker) -> None:
    by_option = view(spark, "transactions", broker, columns="half_offset, state")
    assert by_option.columns == ["half_offset", "state"]
    by_schema = (
        spark.read.schema("state string, broker string, half_offset bigint")
        .format("escrowmq")
        .option("view", "transactions")
        .option("broker", broker.broker_address)
        .load()
    )
    assert sorted(by_schema.select("half_offset", "state").collect()) == sorted(by_option.collect())
    without_ids = view(spark, "transactions", broker, withIds="false")
    assert {row.transaction_id for row in without_ids.collect()} == {None}


def test_the_rules_have_an_answer_for_every_transaction(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    columns = ",".join((facts.HALF_OFFSET, *facts.FACT_COLUMNS))
    transactions = view(spark, "transactions", broker, columns=columns)
    nullable = {one.name for one in transactions.schema if one.nullable}
    # The rules treat a missing check as an endless wait.
    assert nullable == {facts.WAIT_MS}
    due = label_column(facts.half_facts(transactions), CheckPolicy(check_after_ms=0), DUES)
    told = (
        transactions.select(facts.HALF_OFFSET, due.alias("due"))
        .orderBy(facts.HALF_OFFSET)
        .collect()
    )
    assert [row.due for row in told] == ["nothing"] * 7 + ["wait"] * 3


def test_several_brokers_are_read_together(spark: SparkSession, broker: InProcessBroker) -> None:
    with InProcessBroker(name="broker-b") as other:
        day.live(other.broker_address, named="other")
        told = view(spark, "transactions", broker, other)
        assert told.groupBy("broker_name").count().orderBy("broker_name").collect() == [
            ("broker-a", 10),
            ("broker-b", 10),
        ]


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("transactions", {"states": "open"}, "bad_option.*prepared.*option='states'"),
        ("transactions", {"columns": "half_offset,body"}, "bad_option.*option='columns'"),
        ("transactions", {"startOffset": "earliest"}, "bad_option.*option='startOffset'"),
        ("halves", {"endOffset": "-1"}, "bad_option.*option='endOffset'"),
        # Half messages have no state.
        ("halves", {"states": "prepared"}, "bad_option.*option='states'"),
        # Only streams have batches.
        ("ops", {"maxBytesPerBatch": "1"}, "bad_option.*option='maxbytesperbatch'"),
        ("facts", {}, "bad_option.*transactions.*option='view'"),
    ],
)
def test_a_wrong_option_is_named_with_what_it_may_be(
    spark: SparkSession, broker: InProcessBroker, name: str, options: dict[str, str], text: str
) -> None:
    with pytest.raises(AnalysisException, match=text):
        view(spark, name, broker, **options).count()


def test_a_schema_with_other_columns_is_refused(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    reader = spark.read.schema("half_offset string").format("escrowmq").option("view", "ops")
    with pytest.raises(AnalysisException, match=r"bad_option.*option='schema'"):
        reader.option("broker", broker.broker_address).load().count()


def test_brokers_of_one_name_are_refused(spark: SparkSession, broker: InProcessBroker) -> None:
    with pytest.raises(AnalysisException, match="broker_named_twice"):
        view(spark, "ops", broker, broker).count()


def test_a_broker_that_is_away_is_said_to_be(spark: SparkSession) -> None:
    with InProcessBroker() as broker:
        address = broker.broker_address
    with pytest.raises(AnalysisException, match="broker_unreachable"):
        view(spark, "ops", address).count()
