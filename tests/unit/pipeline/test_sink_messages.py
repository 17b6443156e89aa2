"""DataFrame rows become messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.sink.messages import MessageMaker
from escrowmq.pipeline.sink.topics import SinkTopics
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.native.rows import TopicRow

PREFIX = "0123456789ABCDEF0123"
PAIRS = pa.map_(pa.string(), pa.string())


def topic(name: str, *, queues: int = 4, perm: int = 6, is_system: bool = False) -> TopicRow:
    return TopicRow(
        topic=name,
        read_queue_count=queues,
        write_queue_count=queues,
        perm=perm,
        message_type="NORMAL",
        is_system=is_system,
        created_at_ms=0,
    )


TOPICS = [topic("orders"), topic("mails", queues=3), topic("closed", perm=4)]
TEMPLATE = topic("TBW102", queues=8, perm=7, is_system=True)


def maker(*more: TopicRow, to: str = "orders") -> MessageMaker:
    return MessageMaker(SinkTopics(lambda: [*TOPICS, *more]), to, PREFIX)


def made(columns: dict[str, Any], making: MessageMaker | None = None) -> list[dict[str, Any]]:
    batch = (making or maker()).messages(pa.record_batch(columns))
    rows: list[dict[str, Any]] = batch.to_pylist()
    return [{**row, "properties": parse_properties(row["properties"].encode())} for row in rows]


def test_a_row_with_a_body_alone_is_a_message_with_an_id() -> None:
    rows = made({"body": [b"a", b""]})
    assert [(row["topic"], row["queue_id"], row["body"]) for row in rows] == [
        ("orders", -1, b"a"),
        ("orders", -1, b""),
    ]
    assert [row["properties"] for row in rows] == [
        {"UNIQ_KEY": f"{PREFIX}000000000000"},
        {"UNIQ_KEY": f"{PREFIX}000000000001"},
    ]
    assert all(row["born_at_ms"] > 1_700_000_000_000 for row in rows)


def test_ids_are_counted_from_one_batch_to_the_next() -> None:
    making = maker()
    made({"body": [b"a", b"b"]}, making)
    (row,) = made({"body": [b"c"]}, making)
    assert row["properties"]["UNIQ_KEY"] == f"{PREFIX}000000000002"


def test_a_text_is_sent_as_utf_8_and_value_is_another_name_for_body() -> None:
    assert [row["body"] for row in made({"value": ["ä", "b"]})] == ["ä".encode(), b"b"]


def test_all_columns_go_where_they_belong() -> None:
    rows = made(
        {
            "body": [b"a", b"b"],
            "key": ["k1", None],
            "keys": ["x y", ""],
            "tags": ["paid", None],
            "properties": pa.array([[("colour", "red"), ("size", "9")], None], PAIRS),
            "delay_ms": [1_500, 0],
            "born_at_ms": [7, None],
        }
    )
    first, second = (row["properties"] for row in rows)
    assert first.pop("UNIQ_KEY")
    assert first == {
        "KEYS": "k1 x y",
        "TAGS": "paid",
        "TIMER_DELAY_MS": "1500",
        "colour": "red",
        "size": "9",
    }
    assert list(second) == ["UNIQ_KEY"]
    assert rows[0]["born_at_ms"] == 7
    assert rows[1]["born_at_ms"] > 7


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns"])
def test_a_timestamp_is_an_instant_in_any_time_zone(zone: str) -> None:
    micros = [1_700_000_000_123_999, None]
    born = pa.array(micros, pa.int64()).cast(pa.timestamp("us", tz=zone))
    rows = made({"body": [b""] * 2, "born_at": born})
    assert rows[0]["born_at_ms"] == 1_700_000_000_123
    assert rows[1]["born_at_ms"] > 1_700_000_000_123


def test_keys_may_be_an_array() -> None:
    keys = pa.array([["x", "y"], [], None, ["z"]], pa.list_(pa.string()))
    rows = made({"body": [b""] * 4, "keys": keys})
    assert [row["properties"].get("KEYS") for row in rows] == ["x y", None, None, "z"]


def test_a_part_of_a_batch_is_as_good_as_a_whole_one() -> None:
    maps = pa.array([[("a", "1")], [("b", "2"), ("c", "3")], None, [("d", "4")]], PAIRS)
    keys = pa.array([["w"], ["x", "y"], None, ["z"]], pa.list_(pa.string()))
    batch = pa.record_batch({"body": [b""] * 4, "properties": maps, "keys": keys}).slice(1, 3)
    properties = [
        parse_properties(text.encode())
        for text in maker().messages(batch)["properties"].to_pylist()
    ]
    assert [{**pairs, "UNIQ_KEY": ""} for pairs in properties] == [
        {"UNIQ_KEY": "", "b": "2", "c": "3", "KEYS": "x y"},
        {"UNIQ_KEY": ""},
        {"UNIQ_KEY": "", "d": "4", "KEYS": "z"},
    ]


def test_a_key_chooses_the_queue_that_the_sdk_would_choose() -> None:
    from zlib import crc32

    keys = [f"order-{number}" for number in range(50)]
    topics = ["orders", "mails"] * 25
    rows = made({"body": [b""] * 50, "key": keys, "topic": topics}, maker(to=""))
    counts = {"orders": 4, "mails": 3}
    assert [row["queue_id"] for row in rows] == [
        crc32(key.encode()) % counts[topic] for key, topic in zip(keys, topics, strict=True)
    ]


def test_a_queue_that_is_named_goes_before_the_key() -> None:
    rows = made({"body": [b""] * 4, "key": ["k", "k", None, ""], "queue_id": [3, None, -1, None]})
    assert [row["queue_id"] for row in rows] == [
        3,
        made({"body": [b""], "key": ["k"]})[0]["queue_id"],
        -1,
        -1,
    ]


def test_the_option_topic_goes_before_the_column() -> None:
    assert made({"body": [b""], "topic": ["closed"]})[0]["topic"] == "orders"


def test_a_topic_that_writing_makes_has_the_queues_of_the_template() -> None:
    from zlib import crc32

    (row,) = made({"body": [b""], "key": ["k"]}, maker(TEMPLATE, to="new"))
    assert row["queue_id"] == crc32(b"k") % 8
    with pytest.raises(RequestRefused, match="topic_of_system"):
        made({"body": [b""]}, maker(TEMPLATE, to="TBW102"))


def test_the_broker_is_asked_once_for_each_topic() -> None:
    asked = []

    def ask() -> list[TopicRow]:
        asked.append(1)
        return [*TOPICS, TEMPLATE]

    making = MessageMaker(SinkTopics(ask), "", PREFIX)
    for _ in range(3):
        made({"body": [b""] * 3, "topic": ["orders", "new", "orders"]}, making)
    assert len(asked) == 2


LONG = "x" * 40_000


def mapped(*pairs: tuple[str, str | None]) -> dict[str, Any]:
    """Return the properties column of two rows, of which the second has these."""
    return {"properties": pa.array([None, list(pairs)], PAIRS)}


@pytest.mark.parametrize(
    ("columns", "code", "column"),
    [
        ({"body": [b"", None]}, "body_illegal", "body"),
        ({"value": ["", None]}, "body_illegal", "value"),
        ({"body": [b"", b"x" * (4 * 1024 * 1024 + 1)]}, "body_too_large", "body"),
        ({"topic": ["orders", None]}, "topic_illegal", "topic"),
        ({"topic": ["orders", "a b"]}, "topic_illegal", "topic"),
        ({"topic": ["orders", "nobody-made-it"]}, "topic_unknown", "topic"),
        ({"topic": ["orders", "closed"]}, "topic_not_writable", "topic"),
        ({"queue_id": [0, 4]}, "queue_id_illegal", "queue_id"),
        ({"queue_id": [0, -2]}, "queue_id_illegal", "queue_id"),
        ({"key": ["a", "a b"]}, "key_illegal", "key"),
        ({"key": ["a", "a\x01b"]}, "property_illegal", "key"),
        ({"keys": ["a", "a\x02b"]}, "property_illegal", "keys"),
        ({"keys": pa.array([["a"], ["a", None]])}, "key_illegal", "keys"),
        ({"keys": pa.array([["a"], ["a", "b c"]])}, "key_illegal", "keys"),
        ({"tags": ["a", "a|b"]}, "tag_illegal", "tags"),
        ({"tags": ["a", "\x01"]}, "property_illegal", "tags"),
        ({"tags": ["a", LONG]}, "properties_too_large", "properties"),
        ({"delay_ms": [0, -1]}, "delay_illegal", "delay_ms"),
        ({"born_at_ms": [0, -1]}, "number_out_of_range", "born_at_ms"),
        (
            {"born_at": pa.array([0, -1_000], pa.timestamp("us", tz="UTC"))},
            "number_out_of_range",
            "born_at",
        ),
        (mapped(("a", "1"), ("", "2")), "property_illegal", "properties"),
        (mapped(("a", "")), "property_illegal", "properties"),
        (mapped(("a", None)), "property_illegal", "properties"),
        (mapped(("a\x01", "b")), "property_illegal", "properties"),
        (mapped(("TAGS", "b")), "property_reserved", "properties"),
    ],
)
def test_a_value_that_cannot_be_sent_is_refused_with_its_row_and_column(
    columns: dict[str, Any], code: str, column: str
) -> None:
    making = maker(to="" if "topic" in columns else "orders")
    if not {"body", "value"} & columns.keys():
        columns = {"body": [b"", b""], **columns}
    making.made = 100
    with pytest.raises(RequestRefused) as refused:
        made(columns, making)
    assert (refused.value.code, refused.value.fields["column"]) == (code, column)
    assert refused.value.fields["row"] == 101


def test_a_refused_property_is_named() -> None:
    for pairs, name in (([("a", "1"), ("TAGS", "b")], "TAGS"), ([("a", "1"), ("b", "")], "b")):
        with pytest.raises(RequestRefused) as raised:
            made({"body": [b"", b""], **mapped(*pairs)})
        assert raised.value.fields["property"] == name
