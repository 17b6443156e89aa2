"""Commands that ask a broker, each against a real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from escrowmq.cli.asking import duration
from escrowmq.cli.group_commands import place_of
from escrowmq.cli.lag import Lag
from escrowmq.cli.main import main
from escrowmq.cli.status import facts
from escrowmq.client.own_calls import OwnCalls
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_headers import HoldManyHeader
from escrowmq.protocol.own_rows import SentInRow
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
    with OwnCalls(broker.address) as calls:
        calls.call(OwnCode.HOLD_MANY, HoldManyHeader(producer_group="pay"), [row])


def test_status_says_that_nothing_settles(run: Run) -> None:
    assert "AWAY" in run("status")
    assert json.loads(run("status", "-o", "json"))["pipeline_away_since_ms"] > 0


def test_status_says_when_the_pipeline_was_last_heard() -> None:
    told = answered(now_ms=100_000)
    assert facts(told, Lag())["pipeline"] == "attached, nothing to settle so far"
    settled = msgspec.structs.replace(told, last_verdict_at_ms=95_000)
    assert facts(settled, Lag())["pipeline"] == "attached, its last verdict came 5 s ago"


@pytest.mark.parametrize(
    ("known", "name", "text"),
    [
        ({}, "disk", "unknown"),
        ({"disk": "all", "disk_free_bytes": 5_000}, "disk", "5,000 bytes free"),
        ({"disk": "no_messages"}, "disk", "0 bytes free, TOO FEW: no messages"),
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
    assert facts(answered(**known), Lag())[name] == text


def test_status_tells_who_lags_most(run: Run) -> None:
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
    whole = json.loads(run("message", "get", found["id"], "-o", "json"))
    assert whole["properties"]["KEYS"] == "k1 k2"
    last = json.loads(run("message", "tail", "--topic", "paid", "-n", "1", "-o", "json"))
    assert last["body"] == "hello"
    assert "message_unknown" in run("message", "get", "7F00000100002A9F00000000000F4240", code=2)
    assert "topic_unknown" in run("message", "tail", "--topic", "none", code=2)


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
    assert "the pipeline is away" in told
    assert "would rollback tx-1" in run("txn", "rollback", "tx-1", "--reason", "no", "--dry-run")
    assert "committed by" in run("txn", "commit", "tx-1", "--reason", "the order is there")
    assert "already_committed" in run("txn", "rollback", "tx-1", "--reason", "no", code=2)
    events = json.loads(run("txn", "show", "tx-1", "-o", "json"))
    assert [event["event"] for event in events] == ["held", "committed", "visible"]
    assert "the order is there" in events[1]["by"]
    assert "decided by" in run("txn", "explain", "tx-1")


def test_only_what_is_parked_is_resumed(broker: InProcessBroker, run: Run) -> None:
    hold(broker, "tx-2")
    assert "would" in run("txn", "resume", "tx-2", "--dry-run")
    assert "not_parked" in run("txn", "resume", "tx-2", code=2)
    run("txn", "rollback", "tx-2", "--reason", "test")


def test_rows_are_printed_for_programs_too(run: Run) -> None:
    assert run("group", "list", "-o", "csv").splitlines()[0] == "group,role,online,lag"
    assert "group_unknown" in run("group", "show", "nobody", code=2)


def test_a_group_is_sent_to_another_place(run: Run) -> None:
    run("topic", "create", "moved", "--queues", "1")
    run("message", "send", "x", "--topic", "moved")
    run("group", "reset-offset", "readers", "--topic", "moved", "--to", "latest")
    (row,) = json.loads(run("group", "show", "readers", "-o", "json"))
    assert (row["offset"], row["lag"]) == (1, 0)
    run("group", "reset-offset", "readers", "--topic", "moved", "--to", "earliest")
    (row,) = json.loads(run("group", "show", "readers", "-o", "json"))
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
