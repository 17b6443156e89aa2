"""``escrowmq lake query`` and ``lake replay``, with a real broker and a real lake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq.cli.main import main
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.lake import replay as lake_replay
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.query import plain
from escrowmq.pipeline.lake.tables import MESSAGES
from escrowmq.pipeline.sink.properties import _RESERVED
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.native.headers import ReadMessagesHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.unit.cli.schema_check import checked
from tests.unit.pipeline.lake_rows import DAY_MS, MIDNIGHT_MS, message, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def _one_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the commands this session, because they would start their own Spark."""
    starting = "escrowmq.pipeline.spark.start_cache.quick_session"
    monkeypatch.setattr(starting, lambda *_, **__: spark)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data directory whose lake has messages of two queues and two days."""
    origin = {"message_id": "id", "unique_key": "u", "transaction_id": "t", "born_at_ms": 5}
    properties = [("colour", "red"), ("KEYS", "k1 k2"), ("UNIQ_KEY", "u"), ("PGROUP", "g")]
    told = {**origin, "keys": "k1 k2", "tags": "t", "properties": properties}
    rows = [
        message(
            "orders",
            number // 2,
            MIDNIGHT_MS + number,
            **{**told, "queue_id": number % 2, "body": b"%d" % number},
        )
        for number in range(10)
    ]
    tomorrow = message("orders", 5, MIDNIGHT_MS + DAY_MS, body=b"tomorrow")
    other = message("invoices", 0, body=b"\xff\x00")
    lake = Lake(tmp_path / "lake")
    lake.append(MESSAGES, rows_of(MESSAGES, *rows, tomorrow, other), lambda _: ())
    return tmp_path


def run(*arguments: object) -> object:
    with pytest.raises(SystemExit) as stopped:
        main(["lake", *(str(argument) for argument in arguments)])
    return stopped.value.code


def test_a_query_prints_what_it_finds_for_people_and_for_programs(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = "SELECT topic, count(*) AS n, min(date) AS day FROM messages GROUP BY topic ORDER BY n"
    assert run("query", sql, "--data-dir", data) == 0
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC     N   DAY",
        "invoices  1   2026-11-01",
        "orders    11  2026-11-01",
    ]
    assert run("query", f"{sql} LIMIT 1", "--data-dir", data, "-o", "json") == 0
    rows = checked("lake query", capsys.readouterr().out)
    assert rows == [{"topic": "invoices", "n": 1, "day": "2026-11-01"}]
    assert run("query", sql, "--data-dir", data, "-o", "csv", "--limit", 1) == 0
    out, err = capsys.readouterr()
    assert out == "topic,n,day\ninvoices,1,2026-11-01\n"
    assert err == "only the first 1 rows; --limit says how many\n"


def test_values_of_all_kinds_are_printed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "SELECT body, properties, struct(flag, 1.5) AS s FROM messages WHERE visible_at_ms = "
    for row in (MIDNIGHT_MS + 3, MIDNIGHT_MS):
        assert run("query", f"{sql} {row}", "--data-dir", data, "-o", "json") == 0
    out = capsys.readouterr().out
    assert '"colour": "red"' in out
    assert '"body": "3"' in out
    # Bytes that are invalid UTF-8.
    assert '"body": "ff00"' in out
    assert plain({"a": [b"x", (1, None)]}) == {"a": ["x", [1, None]]}
    # JSON has no NaN and no infinity.
    assert plain([float("nan"), float("-inf"), 0.5]) == [None, None, 0.5]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT * FROM message", "[TABLE_OR_VIEW_NOT_FOUND] The table or view `message` "),
        ("SELECT FORM messages WHERE", "[PARSE_SYNTAX_ERROR] Syntax error at or near end of input"),
        ("SELECT 1 / 0", "[DIVIDE_BY_ZERO] Division by zero."),
        ("/* a note */ DROP VIEW messages", "begin with one of SELECT, WITH"),
        ("", "begin with one of SELECT, WITH"),
    ],
)
def test_a_wrong_query_is_one_line(
    data: Path, sql: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("query", sql, "--data-dir", data) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"escrowmq: bad_query: {said}")
    assert err.count("\n") == 1


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(queue_count=2) as broker:
        broker.create_topic("again", queues=2)
        yield broker


def visible(broker: InProcessBroker, queue_id: int) -> list[Any]:
    with NativeCalls(broker.broker_address) as calls:
        header = ReadMessagesHeader(topic="again", queue_id=queue_id)
        return list(calls.rows(NativeCode.READ_MESSAGES, header))


def order(broker: InProcessBroker, data: Path, *more: object) -> list[object]:
    times = ("--from", MIDNIGHT_MS, "--to", "2026-11-02T00:00:00Z")
    places = ("--into", "again", "--broker", broker.broker_address, "--data-dir", data)
    return ["replay", "--topic", "orders", *times, *places, "-o", "json", *more]


def test_a_replay_publishes_once_what_was_archived(
    broker: InProcessBroker, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*order(broker, data, "--dry-run")) == 0
    would = checked("lake replay", capsys.readouterr().out)
    assert visible(broker, 0) == []
    assert run(*order(broker, data)) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["messages"], first["was_done_before"]) == (10, False)
    assert would == first
    # A repeated order is the same replay.
    assert run(*order(broker, data)) == 0
    again = json.loads(capsys.readouterr().out)
    assert again == {**first, "messages": 0, "was_done_before": True}
    assert run(*order(broker, data, "--dry-run")) == 0
    assert json.loads(capsys.readouterr().out) == again

    # The messages of each queue are in one queue, in their order.
    bodies = [[row.body for row in visible(broker, queue_id)] for queue_id in (0, 1)]
    assert bodies == [[b"0", b"2", b"4", b"6", b"8"], [b"1", b"3", b"5", b"7", b"9"]]
    row = visible(broker, 1)[2]
    assert (row.keys, row.tags, row.born_at_ms) == ("k1 k2", "t", 5)
    properties = parse_properties(row.properties.encode())
    assert properties["colour"] == "red"
    origin = {name: value for name, value in properties.items() if name.startswith("REPLAY")}
    assert origin == {
        "REPLAY_ID": first["replay_id"],
        "REPLAYED_BROKER": "b",
        "REPLAYED_TOPIC": "orders",
        "REPLAYED_QUEUE_ID": "1",
        "REPLAYED_QUEUE_OFFSET": "2",
        "REPLAYED_MESSAGE_ID": "id",
        "REPLAYED_UNIQUE_KEY": "u",
        "REPLAYED_TRANSACTION_ID": "t",
    }


def test_another_id_is_another_replay_and_is_done_once(
    broker: InProcessBroker,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Kill it after the publication, before the lake records it.
    with monkeypatch.context() as dying:
        dying.setattr(lake_replay, "once", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            main(["lake", *map(str, order(broker, data, "--replay-id", "mine"))])
    capsys.readouterr()
    assert run(*order(broker, data, "--replay-id", "mine")) == 0
    assert json.loads(capsys.readouterr().out) == {
        "replay_id": "mine",
        "messages": 0,
        "was_done_before": True,
    }
    assert len(visible(broker, 0)) == 5
    # From now on the lake knows it, too, even if the broker forgets.
    marker = "escrowmq/replay/mine"
    assert Lake(data / "lake").open(MESSAGES).transaction_version(marker) == 0


def test_of_two_replays_at_once_one_publishes(
    broker: InProcessBroker,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue_count = lake_replay._queue_count

    def overtaken(one: lake_replay.Replay) -> int:
        """Run the other replay after the first has read, and before it writes."""
        monkeypatch.setattr(lake_replay, "_queue_count", queue_count)
        assert run(*order(broker, data)) == 0
        return queue_count(one)

    monkeypatch.setattr(lake_replay, "_queue_count", overtaken)
    assert run(*order(broker, data)) == 0
    out = capsys.readouterr().out
    other, first = (json.loads(one) for one in out.replace("}\n{", "}\n\0{").split("\0"))
    assert (other["messages"], other["was_done_before"]) == (10, False)
    assert (first["messages"], first["was_done_before"]) == (0, True)
    assert [len(visible(broker, queue_id)) for queue_id in (0, 1)] == [5, 5]


def test_a_replay_into_a_topic_that_does_not_exist_is_refused(
    broker: InProcessBroker, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(one) if one != "again" else "nowhere" for one in order(broker, data)]
    assert run(*arguments) == 2
    (error,) = checked("error", capsys.readouterr().err)
    assert error["code"] == "topic_unknown"


def test_a_replay_of_nothing_publishes_nothing(
    broker: InProcessBroker, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*order(broker, data), "--topic", "none") == 0
    assert json.loads(capsys.readouterr().out)["messages"] == 0


def test_properties_that_the_sink_sets_are_left_out() -> None:
    assert set(_RESERVED.to_pylist()) <= set(lake_replay.LEFT_OUT)
