"""Undecided transactions are listed, explained, and decided by hand through their ledgers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from escrowmq.cli.main import main
from escrowmq.cli.txn.explain import explained
from escrowmq.cli.txn.rows import COLUMNS, line_of, shape_of
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.messages.messages import Received
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.client.producer.producer import Producer
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.native.headers import HoldManyHeader, LifeLineAnswer, ListTransactionsHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import NO_CHECK_MS, EventRow, SentInRow
from escrowmq.protocol.native.status_answer import StatusAnswer
from escrowmq.testing import InProcessBroker
from escrowmq.transaction.policy import CheckPolicy
from tests.unit.cli.answers import answered

Run = Callable[..., str]
GROUP = "pay"
ALLOWED_MS = 60_000


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as running:
        yield running


@pytest.fixture
def run(broker: InProcessBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, code: int = 0, at: str = broker.address) -> str:
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--broker", at])
        told = capsys.readouterr()
        assert left.value.code == code, told.err
        return told.out if code == 0 else told.err

    return run


class Shop:
    """A database with a ledger, and a config file that names it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "shop.db"
        self.uuid = SqlLedger(f"sqlite:///{self.file}").create()
        self.config = folder / "escrowmq.toml"
        self.config.write_text(f"[ledger.shop]\nurl = 'sqlite:///{self.file}'\n")

    def commit_row(self, transaction_id: str) -> None:
        with closing(sqlite3.connect(self.file)) as connection, connection:
            connection.execute(
                "INSERT INTO escrowmq_ledger VALUES (?, ?, 'committed', 1)", (transaction_id, GROUP)
            )

    def outcomes(self) -> dict[str, str]:
        with closing(sqlite3.connect(self.file)) as connection:
            return dict(connection.execute("SELECT transaction_id, outcome FROM escrowmq_ledger"))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def hold(
    broker: InProcessBroker, *transaction_ids: str, group: str = GROUP, ledger: str = ""
) -> None:
    rows = [
        SentInRow(
            transaction_id=transaction_id,
            topic="paid",
            queue_id=-1,
            body=b"one",
            properties="",
            flag=0,
            sys_flag=0,
            born_at_ms=0,
        )
        for transaction_id in transaction_ids
    ]
    header = HoldManyHeader(producer_group=group, ledger=ledger, allowed_ms=ALLOWED_MS)
    with NativeCalls(broker.address) as calls:
        calls.call(NativeCode.HOLD_MANY, header, rows)


def by_hand(shop: Shop, word: str, transaction_id: str, *more: str) -> tuple[str, ...]:
    return ("txn", word, transaction_id, "--reason", "asked", "--config", str(shop.config), *more)


# Settling by hand.


def test_a_commit_that_the_ledger_agrees_with_is_made(
    broker: InProcessBroker, run: Run, shop: Shop
) -> None:
    hold(broker, "agreed", ledger=shop.uuid)
    shop.commit_row("agreed")
    assert "its ledger says committed" in run(*by_hand(shop, "commit", "agreed", "--dry-run"))
    assert "agreed committed by" in run(*by_hand(shop, "commit", "agreed"))


def test_a_decision_against_the_ledger_is_refused_and_force_is_on_record(
    broker: InProcessBroker, run: Run, shop: Shop
) -> None:
    hold(broker, "against", ledger=shop.uuid)
    shop.commit_row("against")
    said = run(*by_hand(shop, "rollback", "against", "--dry-run"))
    assert "would refuse to rollback against: its ledger says committed" in said
    assert "against_ledger" in run(*by_hand(shop, "rollback", "against"), code=2)
    said = run(*by_hand(shop, "rollback", "against", "--force", "--dry-run"))
    assert "the log records that it was forced" in said
    run(*by_hand(shop, "rollback", "against", "--force"))
    events = json.loads(run("txn", "show", "against", "-o", "json"))["events"]
    assert events[-1]["by"].endswith("asked (forced; the ledger said committed)")


def test_a_rollback_of_what_is_absent_is_fenced(
    broker: InProcessBroker, run: Run, shop: Shop
) -> None:
    hold(broker, "absent", ledger=shop.uuid)
    assert "its ledger says absent" in run(*by_hand(shop, "rollback", "absent", "--dry-run"))
    # A dry run changes nothing.
    assert shop.outcomes() == {}
    assert "against_ledger" in run(*by_hand(shop, "commit", "absent"), code=2)
    broker.advance(ms=ALLOWED_MS + 1)
    run(*by_hand(shop, "rollback", "absent"))
    assert shop.outcomes() == {"absent": "rolled_back"}


def test_a_ledger_that_no_config_names_is_asked_for(broker: InProcessBroker, run: Run) -> None:
    hold(broker, "elsewhere", ledger="no such ledger")
    for words in (["commit"], ["commit", "--dry-run"], ["rollback"]):
        refused = run("txn", *words, "elsewhere", "--reason", "x", code=2)
        assert "ledger_not_given" in refused
        assert "the config has no [ledger.NAME] section: pass --config FILE" in refused
        assert "ledger='no such ledger'" in refused
    run("txn", "rollback", "elsewhere", "--reason", "x", "--force")


def test_a_database_that_does_not_answer_is_told(
    broker: InProcessBroker, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    hold(broker, "silent", ledger=shop.uuid)
    shop.file.unlink()
    with pytest.raises(SystemExit):
        main([*by_hand(shop, "commit", "silent", "--dry-run"), "--broker", broker.address])
    told = capsys.readouterr().err
    assert "not among the configured ones (shop: ledger_unreachable" in told
    forced = by_hand(shop, "commit", "silent", "--dry-run", "--force")
    with pytest.raises(SystemExit):
        main([*forced, "--broker", broker.address])
    assert "ledger shop could not be asked: ledger_unreachable" in capsys.readouterr().err
    with NativeCalls(broker.address) as calls:
        assert next(calls.rows(NativeCode.LIST_TRANSACTIONS)).state == 0


def test_two_databases_with_one_uuid_are_both_left_alone(
    broker: InProcessBroker, run: Run, shop: Shop, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(shop.file.read_bytes())
    with shop.config.open("a") as config:
        config.write(f"[ledger.copy]\nurl = 'sqlite:///{copy}'\n")
    hold(broker, "twice", ledger=shop.uuid)
    shop.commit_row("twice")
    refused = run(*by_hand(shop, "commit", "twice"), code=2)
    assert "ledger_not_given" in refused
    assert "copy: ledger_twice, another one has the same UUID" in refused


def test_a_decided_transaction_is_not_decided_again(broker: InProcessBroker, run: Run) -> None:
    hold(broker, "done")
    run("txn", "commit", "done", "--reason", "x", "--force")
    events = json.loads(run("txn", "show", "done", "-o", "json"))["events"]
    assert events[1]["by"].endswith("x (forced; it has no ledger)")
    said = run("txn", "rollback", "done", "--reason", "x", "--dry-run")
    assert "a decision is final, so nothing would be done" in said


# Lists.


def test_the_oldest_come_first_and_filters_leave_out_the_others(run: Run) -> None:
    with InProcessBroker() as broker:

        def listed(*more: str) -> list[str]:
            told = run("txn", "list", "-o", "json", *more, at=broker.address)
            return [row["id"] for row in json.loads(told)]

        hold(broker, *(f"old-{at}" for at in range(3)), group="a")
        broker.advance(seconds=100)
        hold(broker, *(f"new-{at}" for at in range(3)), group="b", ledger="somewhere")
        assert listed() == ["old-0", "old-1", "old-2", "new-0", "new-1", "new-2"]
        assert listed("--group", "b") == ["new-0", "new-1", "new-2"]
        assert listed("--older-than", "50") == ["old-0", "old-1", "old-2"]
        assert listed("--nobody-online") == ["old-0", "old-1", "old-2"]
        assert listed("--limit", "2") == ["old-0", "old-1"]
        assert listed("--group", "b", "--limit", "1") == ["new-0"]


def test_programs_get_milliseconds(broker: InProcessBroker, run: Run) -> None:
    hold(broker, "counted")
    (row,) = [one for one in json.loads(run("txn", "list", "-o", "json")) if one["id"] == "counted"]
    assert (row["age_ms"], row["next_check_in_ms"]) == (0, 6_000)
    head = run("txn", "list", "-o", "csv").splitlines()[0]
    assert head == (
        "half,state,age_ms,group,checks,next_check_in_ms,producers,ledger,id,"
        "topic,keys,tags,body_preview,body_bytes,message_count"
    )


@pytest.mark.parametrize(
    ("wait_ms", "shown", "in_ms"),
    [
        (-1, "due", -1),
        (4_000, "in 4 s", 4_000),
        # No check is planned.
        (NO_CHECK_MS, None, None),
        (NO_CHECK_MS + 1, None, None),
    ],
)
def test_a_transaction_without_a_planned_check_shows_none(
    broker: InProcessBroker, wait_ms: int, shown: str | None, in_ms: int | None
) -> None:
    hold(broker, "planned")
    with NativeCalls(broker.address) as calls:
        asked = ListTransactionsHeader(states="prepared", with_ids=True)
        *_, listed = calls.call(NativeCode.LIST_TRANSACTIONS, asked).rows
    row = msgspec.structs.replace(listed, wait_ms=wait_ms)
    assert line_of(row, {})[COLUMNS.index("next check")] == shown
    assert shape_of(row, {}).next_check_in_ms == in_ms


# `txn explain`.


def words(
    told: StatusAnswer | None = None,
    due_before: int = 0,
    parked: str = "",
    answers: Sequence[str] = (),
    **known: object,
) -> str:
    head = LifeLineAnswer(
        half_offset=1,
        transaction_id="t",
        producer_group=GROUP,
        ledger="",
        state="prepared",
        checks_sent=0,
        next_check_at_ms=1_000_000,
        producers_online=1,
    )
    events = [EventRow(at_ms=900_000, event="held", log_offset=0, by="", detail="")]
    events += [
        EventRow(at_ms=999_000, event="answered", log_offset=1, by="client-1", detail=answer)
        for answer in answers
    ]
    if parked:
        events.append(EventRow(at_ms=950_000, event="parked", log_offset=1, by="", detail=parked))
    head = msgspec.structs.replace(head, **known)
    return "\n".join(explained(head, events, told or answered(), due_before=due_before))


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"next_check_at_ms": 1_004_000}, "first check is due in 4 s"),
        ({"next_check_at_ms": 1_004_000, "checks_sent": 2}, "after check 2 it waits 30 s"),
        ({"next_check_at_ms": 1_004_000, "checks_sent": 15}, "the transaction is parked in 4 s"),
        ({"checks_sent": 15}, "next round parks it (asked 15 times)"),
        ({"producers_online": 0}, "The check waits until a producer of that group connects"),
        ({"producers_online": 0}, "the transaction is parked at 1970-01-01 01:15:00"),
        ({}, "next round, the broker asks a producer"),
        ({"due_before": 7}, "7 others of its group have been due for longer"),
        ({"ledger": "u"}, "next round looks it up"),
        ({"ledger": "u", "next_check_at_ms": 1_004_000}, "It is looked up in 4 s"),
        ({"state": "parked", "parked": "exhausted"}, "asked 15 times and gave no outcome"),
        ({"state": "parked", "parked": "exhausted"}, "It gets no more checks"),
        ({"state": "parked", "parked": "past_retention"}, "it was still undecided after 1 h"),
        ({"state": "committed"}, "A decision is final, so no more checks follow"),
    ],
)
def test_the_next_step_is_shown_with_its_reason(known: dict[str, Any], said: str) -> None:
    assert said in words(**known)


@pytest.mark.parametrize("state", ["prepared", "parked"])
def test_the_last_answer_to_a_check_is_told_in_its_producers_words(state: str) -> None:
    answers = ["check 1: ValueError: earlier", "check 2: ValueError:\x1b[31m no\ntable"]
    said = words(answers=answers, state=state, checks_sent=2)
    assert "client-1 could not tell at check 2, at 1970-01-01 00:16:39" in said
    assert r"ValueError:\x1b[31m no\ntable" in said
    assert "earlier" not in said
    assert "could not tell" not in words(answers=["check 1"], state=state, checks_sent=1)


def test_the_error_of_a_check_is_explained(run: Run) -> None:
    def look_up(_half: Received) -> Resolution:
        raise LookupError("no table orders")

    with (
        InProcessBroker() as broker,
        Producer(broker.address, group="pay", checker=look_up) as producer,
    ):
        held = producer.send_half("orders", b"1")
        broker.advance(seconds=7)
        broker.run_checks()
        said = run("txn", "explain", held.transaction_id, at=broker.address)
        assert "could not tell at check 1" in said
        assert "LookupError: no table orders" in said
        shown = run("txn", "show", held.transaction_id, at=broker.address)
        assert "check 1: LookupError: no table orders" in shown


def test_a_transaction_is_explained_from_its_hold_to_its_end(run: Run) -> None:
    policy = CheckPolicy(park_after_ms=60_000)
    with InProcessBroker(policy=policy) as broker:
        hold(broker, "told")
        assert "first check is due in 6 s" in run("txn", "explain", "told", at=broker.address)
        broker.advance(seconds=61)
        assert "older than 1 min" in run("txn", "explain", "told", at=broker.address)
        broker.run_checks()
        said = run("txn", "explain", "told", at=broker.address)
        assert "it was still undecided after 1 min" in said
        assert "would have told checked again" in run(
            "txn", "resume", "told", "--dry-run", at=broker.address
        )
        run("txn", "resume", "told", at=broker.address)
        # A resume restarts the age.
        assert "parks it" not in run("txn", "explain", "told", at=broker.address)
        run("txn", "rollback", "told", "--reason", "no", at=broker.address)
        said = json.loads(run("txn", "explain", "told", "-o", "json", at=broker.address))
        assert said["state"] == "rolled_back"
        assert "by hand: no" in said["words"]


def test_no_producer_is_named_for_a_transaction_of_a_spark_sink(
    broker: InProcessBroker, run: Run
) -> None:
    attempt = f"write/daily/1000/{'0' * 8}/3/{'f' * 32}"
    hold(broker, f"{attempt}@77", group="%SINK%shop@b-2")
    said = run("txn", "explain", f"{attempt}@77")
    assert "Broker b-2 decides it" in said
    assert "producer" not in said


def test_the_process_that_checks_is_named() -> None:
    by_broker = answered(checker="broker", checker_since_ms=500_000)
    assert "The broker checks by itself since 1970-01-01" in words(by_broker)
    failed = msgspec.structs.replace(by_broker, round_error="disk\nfull")
    assert "Its last round failed: disk" in words(failed)
    assert "Checks are off (transaction.checked_by = off)" in words(answered(checker="none"))


def test_rocketmqs_way_after_the_last_check_is_said() -> None:
    rolls_back = answered(after_last_check="rollback")
    assert "next round rolls it back (asked 15 times)" in words(rolls_back, checks_sent=15)
    assert "next round looks it up" in words(rolls_back, checks_sent=15, ledger="u")


def test_the_explanation_names_every_obstacle() -> None:
    assert "pipeline is away since" in words(answered(pipeline_away_since_ms=500_000))
    grown = answered(check_backoff=2.0)
    known: dict[str, Any] = {"checks_sent": 3, "next_check_at_ms": 1_004_000}
    assert "after check 3 it waits 2 min" in words(grown, **known)
    assert "2 times the one before, at most 10 min" in words(grown, **known)
    assert "older than 1 min" in words(answered(park_after_ms=60_000))
