"""Settling many transactions by hand: the selection, their ledgers and each outcome."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from escrowmq.cli.main import main
from escrowmq.cli.txn import asking, bulk
from escrowmq.cli.txn.filter import TransactionFilter, parse_filters
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.client.producer import decide_by_hand as by_hand
from escrowmq.model.errors import OutcomeUnknown, RequestRefused, Unavailable
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.properties import format_properties
from escrowmq.protocol.native import previews
from escrowmq.protocol.native.headers import HoldManyHeader, ListTransactionsHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import SentInRow, TransactionRow
from escrowmq.testing import InProcessBroker
from tests.unit.cli.schema_check import checked

Run = Callable[..., Any]
HOUR_MS = 3_600_000


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as running:
        yield running


@pytest.fixture
def ledger(tmp_path: Path) -> SqlLedger:
    ledger = SqlLedger(f"sqlite:///{tmp_path}/shop.db")
    ledger.create()
    url = f"sqlite:///{tmp_path}/shop.db"
    (tmp_path / "escrowmq.toml").write_text(f'[ledger.shop]\nurl = "{url}"\n')
    return ledger


@pytest.fixture
def run(
    broker: InProcessBroker,
    ledger: SqlLedger,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    def run(words: str, *more: str, code: int = 0) -> Any:  # noqa: ANN401 - any JSON value
        with pytest.raises(SystemExit) as left:
            main(
                [
                    *("txn", *words.split(), *more, "--broker", broker.address, "-o", "json"),
                    *("--reason", "outage", "--config", str(tmp_path / "escrowmq.toml")),
                ]
            )
        told = capsys.readouterr()
        assert left.value.code == code, told
        if not told.out.strip():
            return told.err
        result = checked(f"txn {words.split(maxsplit=1)[0]} --filter", told.out)
        assert result["is_dry_run"] == ("--dry-run" in words)
        return result["transactions"]

    assert ledger.uuid()
    return run


def hold(
    broker: InProcessBroker,
    *ids: str,
    group: str = "pay",
    topic: str = "paid",
    ledger: str = "",
    messages: int = 1,
) -> None:
    rows = [
        SentInRow(
            transaction_id=one,
            topic=topic,
            queue_id=0,
            body=b"",
            properties=format_properties({"KEYS": f"order-{one}-{number} {one}"}).decode(),
            flag=0,
            sys_flag=0,
            born_at_ms=1,
        )
        for one in ids
        for number in range(messages)
    ]
    header = HoldManyHeader(producer_group=group, ledger=ledger, allowed_ms=60_000)
    with NativeCalls(broker.broker_address) as calls:
        calls.call(NativeCode.HOLD_MANY, header, rows)


def states(broker: InProcessBroker) -> dict[str, int]:
    wanted = ListTransactionsHeader(states="prepared,committed,rolled_back", with_ids=True)
    with NativeCalls(broker.broker_address) as calls:
        return {
            row.transaction_id: row.state
            for row in calls.rows(NativeCode.LIST_TRANSACTIONS, wanted)
        }


def outcomes(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["id"]: row["outcome"] for row in rows}


def commit_in_database(tmp_path: Path, *ids: str) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        for one in ids:
            connection.execute(
                "INSERT INTO escrowmq_ledger VALUES (?, 'pay', 'committed', 1)", (one,)
            )


def test_a_dry_run_says_what_the_run_then_does(
    broker: InProcessBroker, ledger: SqlLedger, run: Run, tmp_path: Path
) -> None:
    hold(broker, "there", "absent", ledger=ledger.uuid())
    hold(broker, "bare")
    hold(broker, "other", group="refund")
    commit_in_database(tmp_path, "there")
    # The command writes no fence before the sender's deadline, and the dry run predicts that.
    rows = run("rollback --filter group=pay --dry-run")
    assert outcomes(rows) == {
        "there": "would_refuse",
        "absent": "would_refuse",
        "bare": "would_rollback",
    }
    broker.advance(seconds=61)
    rows = run("rollback --filter group=pay --dry-run")
    assert outcomes(rows)["absent"] == "would_rollback"
    assert set(states(broker).values()) == {0}
    done = run("rollback --filter group=pay --yes", code=1)
    assert outcomes(done) == {"there": "refused", "absent": "rolled_back", "bare": "rolled_back"}
    assert "against_ledger" in next(row["detail"] for row in done if row["outcome"] == "refused")
    assert states(broker) == {"there": 0, "absent": 2, "bare": 2, "other": 0}
    # The fence is in the ledger.
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        found = dict(connection.execute("SELECT transaction_id, outcome FROM escrowmq_ledger"))
    assert found == {"there": "committed", "absent": "rolled_back"}
    assert outcomes(run("commit --filter group=pay --yes")) == {"there": "committed"}


def test_force_is_foreseen_and_goes_on_record(
    broker: InProcessBroker,
    ledger: SqlLedger,
    run: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hold(broker, "there", ledger=ledger.uuid())
    commit_in_database(tmp_path, "there")
    (row,) = run("rollback --filter topic=paid --force --dry-run")
    assert (row["outcome"], row["detail"]) == ("would_force_rollback", "its ledger says committed")
    run("rollback --filter topic=paid --force --yes")
    with pytest.raises(SystemExit):
        main(["txn", "show", "there", "--broker", broker.address])
    assert "outage (forced; the ledger said committed)" in capsys.readouterr().out


def test_topic_and_key_choose_by_any_message_of_a_transaction(
    broker: InProcessBroker, run: Run
) -> None:
    hold(broker, "a", "b", messages=3)
    hold(broker, "c", topic="shipped")
    (row,) = run("commit --filter topic=shipped --dry-run")
    assert (row["id"], row["topic"], row["keys"]) == ("c", "shipped", ["order-c-0", "c"])
    (row,) = run("commit --dry-run", "--filter", "key=order-b-2")
    assert (row["id"], row["keys"], row["age_ms"]) == ("b", ["order-b-2", "b"], 0)
    assert run("commit --dry-run --filter key=order-b") == []
    assert outcomes(run("commit --yes --filter topic=paid,key=a")) == {"a": "committed"}


def test_age_and_limit_choose_the_oldest(broker: InProcessBroker, run: Run) -> None:
    hold(broker, "old")
    broker.advance(seconds=7_200)
    hold(broker, "new", "newer")
    assert list(outcomes(run("commit --dry-run --filter older-than=2h"))) == ["old"]
    assert list(outcomes(run("commit --dry-run --filter younger-than=1h"))) == ["new", "newer"]
    assert list(outcomes(run("commit --dry-run --limit 2 --filter group=pay"))) == ["old", "new"]
    assert run("commit --dry-run --filter older-than=1d") == []


def test_a_run_asks_first_and_no_answer_does_nothing(
    broker: InProcessBroker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(broker, "a")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert "nothing was done" in run("commit --filter group=pay", code=1)
    assert states(broker) == {"a": 0}


def test_a_broker_that_goes_away_ends_the_run_and_each_transaction_is_reported(
    broker: InProcessBroker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(broker, "a", "b", "c", "d")
    ends = iter([None, OutcomeUnknown("answer_lost", "look"), Unavailable("away", "later")])
    settle = by_hand.decide_by_hand

    def fail(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - as decide_by_hand
        if (error := next(ends)) is not None:
            raise error
        return settle(*given, **named)

    monkeypatch.setattr(by_hand, "decide_by_hand", fail)
    rows = run("commit --filter group=pay --yes", code=bulk.EXIT_AWAY)
    assert [row["outcome"] for row in rows] == ["committed", "unknown", "not_tried", "not_tried"]
    assert "away" in rows[2]["detail"]
    ends = iter([OutcomeUnknown("answer_lost", "look"), None, None])
    rows = run("commit --filter group=pay --yes", code=bulk.EXIT_UNKNOWN)
    assert [row["outcome"] for row in rows] == ["unknown", "committed", "committed"]


def test_an_interrupted_transaction_is_reported_as_unknown(
    broker: InProcessBroker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(broker, "a", "b")

    def interrupt(*_given: Any, **_named: Any) -> None:  # noqa: ANN401 - as decide_by_hand
        raise KeyboardInterrupt

    monkeypatch.setattr(by_hand, "decide_by_hand", interrupt)
    rows = run("commit --filter group=pay --yes", code=130)
    assert [row["outcome"] for row in rows] == ["unknown", "not_tried"]


def test_a_half_message_of_another_transaction_is_not_settled(broker: InProcessBroker) -> None:
    hold(broker, "a")
    with (
        NativeCalls(broker.broker_address) as calls,
        pytest.raises(RequestRefused, match="other_history"),
    ):
        by_hand.decide_by_hand(
            calls,
            {},
            half_offset=0,
            transaction_id="b",
            resolution=Resolution.COMMIT,
            reason="outage",
            by="me",
        )
    assert states(broker) == {"a": 0}


def test_a_transaction_whose_messages_cannot_all_be_read_is_left_out_and_told(
    broker: InProcessBroker,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hold(broker, "a", messages=9)
    (row,) = run("commit --dry-run --filter key=order-a-8")
    assert row["keys"] == ["order-a-8", "a"]
    monkeypatch.setattr(previews, "PREVIEWS_MAX", 6)
    words = "txn commit --dry-run --reason outage --filter key=order-a-8"
    with pytest.raises(SystemExit):
        main([*words.split(), "--broker", broker.address])
    told = capsys.readouterr()
    assert "no transaction matches" in told.out
    assert "left out 1 transactions" in told.err


def test_a_run_that_finds_nothing_says_so_and_not_what_it_would_do(
    broker: InProcessBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "txn rollback --yes --reason outage --filter group=nobody"
    with pytest.raises(SystemExit) as left:
        main([*words.split(), "--broker", broker.address])
    told = capsys.readouterr()
    assert (left.value.code, told.out, told.err) == (0, "no transaction matches\n", "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("commit", "name one transaction, or some with --filter"),
        ("commit x --filter group=pay", "name one transaction, or some with --filter"),
        ("commit --filter group", "NAME=VALUE"),
        ("commit --filter colour=red", "names are group"),
        ("commit --filter group=", "NAME=VALUE"),
        ("commit --filter group=a,group=b", "given twice"),
        ("commit --filter state=committed", "prepared and parked"),
        ("commit --filter older-than=soon", "30s, 5min, 2h or 1d"),
        ("commit --filter older-than=0s", "30s, 5min, 2h or 1d"),
    ],
)
def test_a_filter_that_means_nothing_is_refused(run: Run, words: str, told: str) -> None:
    assert told in run(words, code=2)


def test_conditions_are_read_from_one_text_or_several() -> None:
    expected = TransactionFilter(
        group="pay",
        topic="",
        key="a,b",
        state="parked",
        id="",
        older_than_ms=HOUR_MS,
        younger_than_ms=0,
    )
    assert parse_filters(["group=pay, key=a,b,state=parked,older-than=1h"]) == expected
    assert parse_filters(["group=pay", "key=a,b", "state=parked", "older-than=60 min"]) == expected
    with pytest.raises(RequestRefused, match="at least one"):
        parse_filters([])


@pytest.mark.parametrize(("key", "is_taken"), [("a\tb", True), ("c", True), ("a", False)])
def test_keys_are_split_at_blanks_alone(key: str, *, is_taken: bool) -> None:
    message = previews.PreviewRow(
        half_offset=1,
        place=0,
        message_count=1,
        topic="orders",
        queue_id=0,
        message_id="",
        unique_key="",
        keys="a\tb c",
        tags="",
        body=b"",
        body_bytes=0,
        sys_flag=0,
    )
    assert parse_filters([f"key={key}"]).takes_message(message) == is_taken


@pytest.mark.parametrize("state", [0, 1, 2, 3])
def test_only_undecided_transactions_are_taken(state: int) -> None:
    row = TransactionRow(
        half_offset=1,
        head=1,
        transaction_id="a",
        producer_group="pay",
        ledger="",
        allowed_ms=0,
        state=state,
        stored_at_ms=0,
        age_ms=0,
        wait_ms=0,
        checks_sent=0,
        message_count=1,
        producers_online=0,
    )
    assert parse_filters(["group=pay"]).takes_row(row, 5) == (state in {0, 3})
    assert parse_filters(["state=parked"]).takes_row(row, 5) == (state == 3)
    assert not parse_filters(["id=b"]).takes_row(row, 5)


def test_very_many_are_settled_in_bounded_requests_with_progress(
    broker: InProcessBroker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "PAGE_ROWS", 7)
    monkeypatch.setattr(bulk, "PROGRESS_S", 0.0)
    hold(broker, *(f"t{number:02}" for number in range(40)))
    rows = run("commit --filter group=pay --yes")
    assert [row["outcome"] for row in rows] == ["committed"] * 40
    assert set(states(broker).values()) == {1}
