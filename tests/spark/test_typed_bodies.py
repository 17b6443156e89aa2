"""One line turns JSON and Avro bodies into typed columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.model.errors import RequestRefused
from escrowmq.spark import from_avro
from escrowmq.testing import InProcessBroker
from tests.spark.topics import read, row, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {
                "name": "paid",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "notes", "type": {"type": "map", "values": ["null", "string"]}},
        ],
    }
)
#: 42, 4.20, 1970-01-01T00:00:00.001Z, {"a": null, "b": "x"}
ORDER = bytes.fromhex("540401a40204026100026202027800")


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        send(broker, row(b'{"id": 42, "paid": "4.20"}', topic="json"), row(b"{", topic="json"))
        # The framing of schema registry clients: a zero byte, four bytes of schema id, the value.
        send(broker, row(ORDER, topic="avro"), row(b"\x00\x00\x00\x00\x07" + ORDER, topic="framed"))
        send(broker, row(ORDER[:-1], topic="damaged"), row(ORDER, topic="damaged"))
        yield broker


def test_json_is_typed_by_spark_itself(spark: SparkSession, broker: InProcessBroker) -> None:
    frame = read(spark, broker, topic="json").orderBy("queue_offset")
    order = F.from_json(F.col("body").cast("string"), "id bigint, paid decimal(9, 2)")
    found = frame.select(order.alias("order")).select("order.*").collect()
    assert found == [(42, Decimal("4.20")), (None, None)]


@pytest.mark.parametrize("is_arrow", [True, False])
def test_avro_is_typed_by_its_schema(
    spark: SparkSession, broker: InProcessBroker, *, is_arrow: bool
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    session.conf.set("spark.sql.execution.pythonUDF.arrow.enabled", str(is_arrow).lower())
    frame = read(session, broker, topic="avro").select(from_avro("body", SCHEMA).alias("order"))
    assert frame.dtypes == [
        ("order", "struct<id:bigint,paid:decimal(9,2),at:timestamp,notes:map<string,string>>")
    ]
    found = frame.select("order.id", "order.paid", F.unix_micros("order.at"), "order.notes").first()
    assert found == (42, Decimal("4.20"), 1_000, {"a": None, "b": "x"})


def test_the_head_of_a_schema_registry_is_cut_off(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    frame = read(spark, broker, topic="framed")
    order = from_avro(F.expr("substring(body, 6)"), SCHEMA)
    assert frame.select(order.getField("id")).first() == (42,)


def test_a_body_that_is_no_value_is_null_or_fails(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    frame = read(spark, broker, topic="damaged").orderBy("queue_offset")
    found = frame.select(from_avro("body", SCHEMA).alias("order")).select("order.id").collect()
    assert found == [(None,), (42,)]
    with pytest.raises(PySparkException, match="the body ends too early"):
        frame.select(from_avro("body", SCHEMA, mode="failfast")).collect()
    with pytest.raises(RequestRefused, match="PERMISSIVE or FAILFAST"):
        from_avro("body", SCHEMA, mode="dropmalformed")


def test_a_column_of_text_is_refused_by_its_type(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    frame = read(spark, broker, topic="avro")
    with pytest.raises(PySparkException, match=r"bad_column: from_avro takes a binary column"):
        frame.select(from_avro(F.col("body").cast("string"), SCHEMA)).collect()


def test_the_options_of_sparks_own_from_avro_are_refused() -> None:
    with pytest.raises(RequestRefused, match=r"bad_option: .*FAILFAST.*as a string"):
        from_avro("body", SCHEMA, {"mode": "FAILFAST"})  # type: ignore[arg-type]  # on purpose
