"""Options and columns of the sink are checked before a task runs."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.sink import batch as sink
from escrowmq.pipeline.sink import stream as stream_sink
from escrowmq.testing import InProcessBroker

BROKER = {"broker": "127.0.0.1:10911"}
BODY = "body string"


def columns(text: str) -> StructType:
    """Parse ``name type, …`` into a schema without a JVM, for a few types only."""
    from pyspark.sql.types import _parse_datatype_json_value

    kinds = {
        "texts": {"type": "array", "elementType": "string", "containsNull": True},
        "numbers": {"type": "array", "elementType": "integer", "containsNull": True},
        "pairs": {
            "type": "map",
            "keyType": "string",
            "valueType": "string",
            "valueContainsNull": True,
        },
    }
    fields = []
    for one in text.split(", "):
        name, kind = one.split(" ")
        fields.append(
            {"name": name, "type": kinds.get(kind, kind), "nullable": True, "metadata": {}}
        )
    schema = _parse_datatype_json_value({"type": "struct", "fields": fields})
    assert isinstance(schema, StructType)
    return schema


def make(options: dict[str, str], schema: str = BODY, *, overwrite: bool = False) -> None:
    sink.writer({**BROKER, **options}, columns(schema), overwrite=overwrite)


def make_stream(options: dict[str, str]) -> None:
    stream_sink.writer({**BROKER, **options}, columns(BODY), overwrite=False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"broker": ""}, "bad_option.*broker"),
        ({"broker": "nowhere"}, "bad_option: host:port.*broker.*nowhere"),
        ({"broker": ",".join(["a:1"] * 65)}, "bad_option: at most 64.*broker.*65"),
        ({"topik": "orders"}, r"bad_option: .*did you mean topic\? there are .*topik"),
        ({"topic": "a b"}, "topic_illegal: may have letters.*a b"),
        ({"appId": "a b"}, "bad_option.*letters.*appId"),
        ({"batchId": "b"}, "bad_option: it must be given with batchId.*appId"),
        ({"appId": "a", "batchId": "b/c"}, "bad_option.*letters.*batchId"),
        ({"timeoutMs": "soon"}, "bad_option: a whole number.*timeoutMs"),
        ({"timeoutMs": "0"}, "bad_option: a whole number from 1 .*timeoutMs"),
    ],
)
def test_a_wrong_option_is_named_with_what_it_may_be(options: dict[str, str], says: str) -> None:
    with pytest.raises(RequestRefused, match=says):
        make({"topic": "orders", **options})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "bad_option: it must be given.*appId"),
        ({"appId": "a", "batchId": "b"}, "bad_option: not for a stream.*batchId"),
    ],
)
def test_a_stream_has_an_app_id_and_no_batch_id(options: dict[str, str], says: str) -> None:
    with pytest.raises(RequestRefused, match=says):
        make_stream({"topic": "orders", **options})
    with InProcessBroker() as broker:
        make_stream({"topic": "orders", "appId": "a", "broker": broker.broker_address})


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("body long", "bad_column: must be binary or string.*body.*bigint"),
        ("key string", "bad_column: give the messages' bodies as body or as value"),
        ("body string, value string", "bad_column: give the messages' bodies"),
        ("body string, id long", r"bad_column: there are body \(binary or string\), .*'id'"),
        ("body string, body string", "bad_column: give each column once"),
        ("body string, topic binary", "bad_column: must be string.*topic"),
        ("body string, keys numbers", "bad_column: must be string or array<string>.*keys"),
        ("body string, queue_id string", "bad_column: must be int.*queue_id"),
        ("body string, born_at long", "bad_column: must be timestamp.*born_at.*bigint"),
        (
            "body string, born_at timestamp_ntz",
            "must be timestamp.*timestamp_ntz",
        ),
        ("body string, born_at timestamp, born_at_ms long", "bad_column: .* not both"),
        ("body string, properties texts", "bad_column: must be map<string,string>.*properties"),
    ],
)
def test_a_wrong_column_is_named_with_what_it_may_be(schema: str, says: str) -> None:
    with pytest.raises(RequestRefused, match=says):
        make({"topic": "orders"}, schema)


def test_all_columns_may_be_there_at_once() -> None:
    make(
        {},
        "value binary, topic string, queue_id integer, key string, keys texts, tags string,"
        " properties pairs, delay_ms long, born_at_ms long",
    )
    make({}, "body string, topic string, queue_id long, keys string, born_at timestamp")


def test_a_topic_is_an_option_or_a_column() -> None:
    with pytest.raises(RequestRefused, match=r"bad_column: give this column, or the option.*topic"):
        make({})


def test_messages_cannot_be_overwritten() -> None:
    with pytest.raises(RequestRefused, match=r"bad_option: append.*mode"):
        make({"topic": "orders"}, overwrite=True)


def test_a_stream_with_a_complete_result_is_told_its_own_mode() -> None:
    options = {"broker": "127.0.0.1:1", "topic": "orders", "appId": "a"}
    with pytest.raises(RequestRefused, match=r'outputMode\("append"\).*option=.outputMode.'):
        stream_sink.writer(options, columns(BODY), overwrite=True)
