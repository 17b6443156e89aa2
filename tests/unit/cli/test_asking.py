"""Commands that ask a broker, run against a real one."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from escrowmq.cli.admin.group_commands import place_of
from escrowmq.cli.admin.status import ReportedLag, facts
from escrowmq.cli.asking import duration
from escrowmq.cli.main import main
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.client.producer.producer import Producer
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.native.headers import HoldManyHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import SentInRow
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.headers import Header
from escrowmq.testing import InProcessBroker
from tests.unit.cli.answers import answered

Run = Callable[..., str]


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as running:
        yield running


@pytest.fixture
def run(broker: InProcessBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--broker", broker.address])
        told = capsys.readouterr()
        assert left.value.code == code, told.err
        return told.out if code == 0 else told.err

    return run


def hold(broker: InProcessBroker, transaction_id: str) -> None:
    row = SentInRow(
        transaction_id=transaction_id,
        topic="paid",
        queue_id=-1,
        body=b"one",
        properties="",
        flag=0,
        sys_flag=0,
        born_at_ms=0,
    )
    with NativeCalls(broker.address) as calls:
        calls.call(NativeCode.HOLD_MANY, HoldManyHeader(producer_group="pay"), [row])


def test_status_says_that_nothing_settles(run: Run) -> None:
    assert "AWAY" in run("status")
    assert json.loads(run("status", "-o", "json"))["pipeline_away_since_ms"] > 0


def test_status_says_that_no_alert_is_watched(run: Run) -> None:
    assert "not watched" in run("status")
    assert json.loads(run("status", "-o", "json"))["alerts"] == "off"
    assert facts(answered(alerts="on"), ReportedLag())["alerts"] == "none"
    assert facts(answered(alerts=""), ReportedLag())["alerts"] == "none"


def test_status_says_when_the_pipeline_was_last_heard() -> None:
    told = answered(now_ms=100_000)
    assert facts(told, ReportedLag())["pipeline"] == "attached, nothing to settle so far"
    settled = msgspec.structs.replace(told, last_verdict_at_ms=95_000)
    assert facts(settled, ReportedLag())["pipeline"] == "attached, its last verdict came 5 s ago"


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({"checker": "none"}, "OFF (transaction.checked_by = off): undecided transactions wait"),
        ({}, "by the pipeline"),
        ({"checker_since_ms": 60_000}, "by the pipeline since 1970-01-01 00:01:00"),
        ({"checker": "broker", "checker_since_ms": 60_000}, "00:01:00.000+00:00, no round so far"),
        ({"checker": "broker", "round_ended_at_ms": 99_000}, "1 s ago: nothing was due"),
        (
            {"checker": "broker", "round_ended_at_ms": 99_000, "round_did": "asked=3"},
            "1 s ago: asked=3",
        ),
        (
            {"checker": "broker", "round_ended_at_ms": 99_000, "round_error": "disk full"},
            "1 s ago, FAILED: disk full",
        ),
    ],
)
def test_status_says_which_process_checks(known: dict[str, Any], text: str) -> None:
    assert text in facts(answered(now_ms=100_000, **known), ReportedLag())["checks"]


def test_status_says_that_the_broker_replaces_a_pipeline() -> None:
    alone = answered(checker="broker")
    assert facts(alone, ReportedLag())["pipeline"] == "none, and none is needed for checks"
    away = answered(checker="broker", pipeline_away_since_ms=500_000)
    assert "AWAY since" in facts(away, ReportedLag())["pipeline"]
    assert "the broker checks instead" in facts(away, ReportedLag())["pipeline"]


@pytest.mark.parametrize(
    ("known", "name", "text"),
    [
        ({}, "disk", "unknown"),
        ({"disk": "all", "disk_free_bytes": 5_000}, "disk", "4.9 KiB free"),
        ({"disk": "no_messages"}, "disk", "0 B free, TOO LITTLE: no messages"),
        ({"durability": "os"}, "flushes", "none: durability is left to the operating system"),
        ({"durability": "fsync"}, "flushes", "none so far"),
        (
            {"flush_ms_median": 1.5, "flush_ms_p99": 9.0},
            "flushes",
            "1.5 ms, 99 of 100 within 9 ms",
        ),
    ],
)
def test_status_tells_disk_and_flushes(known: dict[str, Any], name: str, text: str) -> None:
    assert facts(answered(**known), ReportedLag())[name] == text


def test_status_tells_the_group_with_the_largest_lag(run: Run) -> None:
    run("topic", "create", "lagged", "--queues", "1")
    for _ in range(3):
        run("message", "send", "x", "--topic", "lagged")
    run("group", "reset-offset", "slow", "--topic", "lagged", "--to", "earliest")
    assert "at most 3 messages, of group slow in topic lagged" in run("status")
    told = json.loads(run("status", "-o", "json"))
    assert (told["lag_max"], told["lag_max_group"]) == (3, "slow")
    assert (told["disk"], told["durability"]) == ("all", "os")
    assert told["disk_free_bytes"] > 0
    assert told["open_files_max"] > 0
    run("group", "reset-offset", "slow", "--topic", "lagged", "--to", "latest")


def test_a_topic_is_made_listed_shown_and_removed(run: Run) -> None:
    assert "would" in run("topic", "create", "gone", "--queues", "2", "--dry-run")
    assert "gone" not in run("topic", "list")
    run("topic", "create", "gone", "--queues", "2", "--type", "transaction")
    (row,) = [
        one for one in json.loads(run("topic", "list", "-o", "json")) if one["topic"] == "gone"
    ]
    assert (row["type"], row["queues"]) == ("TRANSACTION", 2)
    run("message", "send", "hello", "--topic", "gone")
    shown = json.loads(run("topic", "show", "gone", "-o", "json"))
    assert sum(queue["messages"] for queue in shown) == 1
    assert "1 messages" in run("topic", "delete", "gone", "--dry-run")
    run("topic", "delete", "gone", "--yes")
    assert "topic_unknown" in run("topic", "show", "gone", code=2)


def test_a_message_is_sent_found_and_watched(run: Run) -> None:
    run("message", "send", "hello", "--topic", "paid", "--keys", "k1 k2", "--tag", "vip")
    (found,) = json.loads(run("message", "query", "--topic", "paid", "--key", "k2", "-o", "json"))
    assert (found["body"], found["tags"]) == ("hello", "vip")
    whole = json.loads(run("message", "get", found["message_id"], "-o", "json"))
    assert whole["properties"]["KEYS"] == "k1 k2"
    last = json.loads(run("message", "tail", "--topic", "paid", "-n", "1", "-o", "json"))
    assert last["body"] == "hello"
    assert "message_unknown" in run("message", "get", "7F00000100002A9F00000000000F4240", code=2)
    assert "topic_unknown" in run("message", "tail", "--topic", "none", code=2)


def test_a_tail_has_a_header_and_shows_zeros(run: Run) -> None:
    run("topic", "create", "zeros", "--queues", "1")
    run("message", "send", "first", "--topic", "zeros")
    header, line = run("message", "tail", "--topic", "zeros").splitlines()
    assert header.split() == ["TOPIC", "QUEUE", "OFFSET", "VISIBLE", "KEYS", "TAGS", "BODY", "ID"]
    assert line.split()[:3] == ["zeros", "0", "0"]
    # Values are aligned with their column header.
    assert line.index("first") == header.index("BODY")
    run("topic", "delete", "zeros", "--yes")


def test_a_body_that_is_not_text_loses_no_byte(broker: InProcessBroker, run: Run) -> None:
    with Producer(broker.address, "raw") as producer:
        sent = producer.send("raw", b"\xff\x00\x1b[2J")
    found = json.loads(run("message", "get", sent.message_id, "-o", "json"))
    assert (found["body"], found["body_bytes"]) == (None, 6)
    assert b64decode(found["body_base64"]) == b"\xff\x00\x1b[2J"
    assert "hex ff001b5b324a" in run("message", "tail", "--topic", "raw")


EVIL = "\x1b[2J\nowned"
ESCAPED = r"\x1b[2J\nowned"


@pytest.mark.parametrize("command", ["tail", "query"])
def test_no_message_controls_the_terminal(broker: InProcessBroker, run: Run, command: str) -> None:
    key = "k\x1b]0;title\x07"
    with Producer(broker.address, "evil") as producer:
        sent = producer.send("evil", EVIL.encode(), key=key, tag="\x9b31m")
    query = ("--key", key) if command == "query" else ()
    told = run("message", command, "--topic", "evil", *query).splitlines()
    for shown in (r"k\x1b]0;title\x07", r"\x9b31m", ESCAPED):
        assert shown in told[1]
    assert all(line.isprintable() for line in told)
    assert ESCAPED in run("message", "get", sent.message_id)


def test_no_name_of_a_client_controls_the_terminal(broker: InProcessBroker, run: Run) -> None:
    hold(broker, EVIL)
    half = json.loads(run("txn", "list", "-o", "json"))[0]["half"]
    with NativeCalls(broker.address) as calls:
        member = {"clientID": EVIL, "producerDataSet": [{"groupName": "evil"}]}
        calls.ask(RequestCode.HEART_BEAT, Header(), msgspec.json.encode(member))
        shown = run("group", "show", "evil")
    texts = [
        shown,
        run("txn", "list"),
        run("txn", "show", str(half)),
        run("txn", "explain", str(half)),
        run("txn", "rollback", str(half), "--reason", "test", "--dry-run"),
        run("message", "get", EVIL),
    ]
    for text in texts:
        assert ESCAPED in text
        assert all(line.isprintable() for line in text.splitlines())
    run("txn", "rollback", str(half), "--reason", "test")


def test_no_error_controls_the_terminal(run: Run) -> None:
    told = run("group", "show", EVIL, code=2)
    assert told.rstrip("\n").isprintable()


def test_an_undecided_transaction_is_listed_explained_and_settled(
    broker: InProcessBroker, run: Run
) -> None:
    hold(broker, "tx-1")
    listed = json.loads(run("txn", "list", "-o", "json"))
    assert [(row["id"], row["state"], row["producers"]) for row in listed] == [
        ("tx-1", "prepared", 0)
    ]
    assert run("txn", "list", "--group", "others").strip() == "nothing is undecided"
    told = run("txn", "explain", "tx-1")
    assert "is prepared" in told
    assert "The pipeline is away" in told
    assert "would rollback tx-1" in run("txn", "rollback", "tx-1", "--reason", "no", "--dry-run")
    assert "committed by" in run("txn", "commit", "tx-1", "--reason", "the order is there")
    assert "already_committed" in run("txn", "rollback", "tx-1", "--reason", "no", code=2)
    events = json.loads(run("txn", "show", "tx-1", "-o", "json"))["events"]
    assert [event["event"] for event in events] == ["held", "committed", "visible"]
    assert "the order is there" in events[1]["by"]
    assert "decided by" in run("txn", "explain", "tx-1")


def test_only_what_is_parked_is_resumed(broker: InProcessBroker, run: Run) -> None:
    hold(broker, "tx-2")
    assert "would" in run("txn", "resume", "tx-2", "--dry-run")
    assert "not_parked" in run("txn", "resume", "tx-2", code=2)
    run("txn", "rollback", "tx-2", "--reason", "test")


def test_rows_are_printed_for_programs_too(run: Run) -> None:
    assert (
        run("group", "list", "-o", "csv").splitlines()[0]
        == "group,role,online,lag,in_flight,paused_at_ms"
    )
    assert "group_unknown" in run("group", "show", "nobody", code=2)


def test_a_group_is_sent_to_another_place(run: Run) -> None:
    run("topic", "create", "moved", "--queues", "1")
    run("message", "send", "x", "--topic", "moved")
    run("group", "reset-offset", "readers", "--topic", "moved", "--to", "latest")
    (row,) = json.loads(run("group", "show", "readers", "-o", "json"))["queues"]
    assert (row["offset"], row["lag"]) == (1, 0)
    run("group", "reset-offset", "readers", "--topic", "moved", "--to", "earliest")
    (row,) = json.loads(run("group", "show", "readers", "-o", "json"))["queues"]
    assert (row["offset"], row["lag"]) == (0, 1)


def test_a_place_is_a_word_or_a_time() -> None:
    noon_ms = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1_000)
    assert place_of("2026-01-31T12:00") == place_of("2026-01-31T13:00+01:00") == noon_ms
    with pytest.raises(RequestRefused, match="time_malformed"):
        place_of("yesterday")


def test_a_broker_that_is_not_there_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["status", "--broker", "127.0.0.1:1"])
    assert left.value.code == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (1_500, "1 s"),
        (61_000, "1 min 1 s"),
        (90_000_000, "1 d 1 h"),
        (3_600_000, "1 h"),
    ],
)
def test_durations_have_two_units(ms: int, text: str) -> None:
    assert duration(ms) == text
