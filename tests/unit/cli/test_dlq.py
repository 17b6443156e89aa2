"""Dead letters are listed, shown and sent again, each exactly once."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from escrowmq import Consumer, Received
from escrowmq.cli import redriving
from escrowmq.cli.main import main
from escrowmq.client.own_calls import OwnCalls
from escrowmq.protocol.codes import RequestCode
from escrowmq.protocol.consumer_headers import SendBackHeader
from escrowmq.protocol.headers import Header
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_headers import HoldManyHeader, ListQueuesHeader, ReadMessagesHeader
from escrowmq.store.config import StoreConfig
from escrowmq.testing import InProcessBroker

Run = Callable[..., Any]
GROUP, TOPIC = "points", "paid"
TO_TOPIC = redriving.Target.TOPIC


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(queue_count=1) as running:
        yield running


@pytest.fixture
def calls(broker: InProcessBroker) -> Iterator[OwnCalls]:
    with OwnCalls(broker.broker_address) as calls:
        yield calls


@pytest.fixture
def run(broker: InProcessBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, code: int = 0) -> Any:  # noqa: ANN401 - any JSON value
        with pytest.raises(SystemExit) as left:
            main(["dlq", *arguments, "--broker", broker.address, "-o", "json"])
        told = capsys.readouterr()
        assert left.value.code == code, told
        return json.loads(told.out) if told.out else told.err

    return run


def give_up(broker: InProcessBroker, calls: OwnCalls, *bodies: str) -> None:
    """Send messages and let a consumer group reject each one without a retry."""
    for body in bodies:
        with pytest.raises(SystemExit):
            main(
                [
                    *f"message send {body} --topic {TOPIC} --keys k-{body}".split(),
                    "--broker",
                    broker.address,
                ]
            )
    group = msgspec.json.encode({"groupName": GROUP})
    calls.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Header(), group)
    (read,) = calls.rows(OwnCode.LIST_QUEUES, ListQueuesHeader(topic=TOPIC))
    asked = ReadMessagesHeader(topic=TOPIC, queue_id=0, start=read.end - len(bodies))
    for row in calls.rows(OwnCode.READ_MESSAGES, asked):
        header = SendBackHeader(log_offset=row.log_offset, consumer_group=GROUP, delay_level=-1)
        calls.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)


def bodies(broker: InProcessBroker, topic: str) -> list[bytes]:
    return [message.body for message in broker.messages(topic)]


@pytest.fixture
def letters(broker: InProcessBroker, calls: OwnCalls, capsys: pytest.CaptureFixture[str]) -> None:
    give_up(broker, calls, "a", "b", "c")
    capsys.readouterr()


@pytest.mark.usefixtures("letters")
def test_dead_letters_are_listed_and_shown(run: Run) -> None:
    assert run("list") == [{"group": GROUP, "letters": 3, "topic": f"%DLQ%{GROUP}"}]
    shown = run("show", GROUP)
    assert [(row["topic"], row["body_preview"], row["was_sent_again"]) for row in shown] == [
        (TOPIC, body, False) for body in "abc"
    ]
    assert [row["body_preview"] for row in run("show", GROUP, "--limit", "1")] == ["a"]


def test_no_dead_letter_controls_the_terminal(
    broker: InProcessBroker, calls: OwnCalls, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    give_up(broker, calls, "\x1b[2Jowned")
    capsys.readouterr()
    assert [row["body_preview"] for row in run("show", GROUP)] == [r"\x1b[2Jowned"]
    with pytest.raises(SystemExit):
        main(["dlq", "show", GROUP, "--broker", broker.address])
    told = capsys.readouterr().out
    assert r"k-\x1b[2Jowned" in told
    assert all(line.isprintable() for line in told.splitlines())


@pytest.mark.usefixtures("letters")
def test_letters_are_sent_to_the_group_that_gave_them_up(broker: InProcessBroker, run: Run) -> None:
    assert [row["outcome"] for row in run("redrive", GROUP, "--dry-run")] == ["would_be_sent"] * 3
    assert bodies(broker, f"%RETRY%{GROUP}") == []
    assert [row["outcome"] for row in run("redrive", GROUP)] == ["sent"] * 3
    assert bodies(broker, f"%RETRY%{GROUP}") == [b"a", b"b", b"c"]
    assert [row["was_sent_again"] for row in run("show", GROUP)] == [True] * 3
    # The topic gets no second copy, because its other groups already have the messages.
    assert len(bodies(broker, TOPIC)) == 3


@pytest.mark.usefixtures("letters")
def test_each_letter_is_sent_once_however_often_it_is_asked_for(
    broker: InProcessBroker, run: Run
) -> None:
    assert [row["outcome"] for row in run("redrive", GROUP, "--limit", "2")] == ["sent"] * 2
    again = ["sent_before", "sent_before", "sent"]
    assert [row["outcome"] for row in run("redrive", GROUP, "--to", "topic")] == again
    assert [row["outcome"] for row in run("redrive", GROUP, "--dry-run")] == ["sent_before"] * 3
    assert bodies(broker, f"%RETRY%{GROUP}") == [b"a", b"b"]
    assert bodies(broker, TOPIC) == [b"a", b"b", b"c", b"c"]
    broker.restart()
    assert [row["outcome"] for row in run("redrive", GROUP)] == ["sent_before"] * 3


def test_a_letter_is_sent_once_also_when_the_broker_no_longer_has_that_in_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = StoreConfig(chunk_rows=8, id_window_ms=0, segment_bytes_max=4_096)
    with InProcessBroker(queue_count=1, store=small) as broker:
        with OwnCalls(broker.broker_address) as calls:
            give_up(broker, calls, "a")
            found = redriving.letters(calls, GROUP)
            (sent,) = redriving.redrive(calls, found, GROUP, redriving.Target.GROUP, "ada")
            assert sent.outcome == "sent"
            give_up(broker, calls, *"bcdefghijklmnopqrstuvwxyz")
            list(redriving.redrive(calls, redriving.letters(calls, GROUP), GROUP, TO_TOPIC, "ada"))
        broker.restart()
        broker.advance(seconds=10_000)
        with OwnCalls(broker.broker_address) as calls:
            found = redriving.letters(calls, GROUP)
            again = list(redriving.redrive(calls, found, GROUP, redriving.Target.GROUP, "ada"))
        assert {one.outcome for one in again} == {"sent before"}
        assert bodies(broker, f"%RETRY%{GROUP}") == [b"a"]
    capsys.readouterr()


def test_two_commands_at_once_send_each_letter_once(
    broker: InProcessBroker, calls: OwnCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up(broker, calls, "a", "b")
    # Simulate that both commands checked before either one sent.
    monkeypatch.setattr(redriving, "was_sent", lambda *_: False)
    for expected in ("sent", "sent before"):
        found = redriving.letters(calls, GROUP)
        sent = redriving.redrive(calls, found, GROUP, redriving.Target.GROUP, "ada")
        assert [one.outcome for one in sent] == [expected] * 2
    assert bodies(broker, f"%RETRY%{GROUP}") == [b"a", b"b"]


@pytest.mark.usefixtures("letters")
def test_what_a_command_that_died_had_begun_is_ended_by_the_next(
    broker: InProcessBroker, calls: OwnCalls, run: Run
) -> None:
    first = next(redriving.letters(calls, GROUP))
    row = redriving._row(first, f"%RETRY%{GROUP}", redriving.Target.GROUP)
    header = HoldManyHeader(producer_group=redriving.PRODUCER_GROUP)
    calls.call(OwnCode.HOLD_MANY, header, [row])
    assert bodies(broker, f"%RETRY%{GROUP}") == []
    assert [row["outcome"] for row in run("redrive", GROUP)] == ["sent"] * 3
    assert sorted(bodies(broker, f"%RETRY%{GROUP}")) == [b"a", b"b", b"c"]


@pytest.mark.usefixtures("letters")
def test_one_letter_is_chosen_by_its_id(broker: InProcessBroker, run: Run) -> None:
    second = run("show", GROUP)[1]["message_id"]
    assert [row["message_id"] for row in run("redrive", GROUP, "--id", second)] == [second]
    assert bodies(broker, f"%RETRY%{GROUP}") == [b"b"]
    assert "message_unknown" in run("redrive", GROUP, "--id", "nonsense", code=2)
    assert "target_unknown" in run("redrive", GROUP, "--to", "nobody", code=2)


@pytest.mark.usefixtures("letters")
def test_a_consumer_gets_what_is_sent_again_as_a_message_of_its_topic(
    broker: InProcessBroker, run: Run
) -> None:
    run("redrive", GROUP)
    got: queue.SimpleQueue[tuple[str, bytes, str]] = queue.SimpleQueue()
    consumer = Consumer(broker.address, group=GROUP)

    @consumer.subscribe(TOPIC)
    def take(message: Received) -> None:
        got.put((message.topic, message.body, message.keys[0]))

    with consumer:
        # The consumer starts at the end of its topic, but reads all messages of its retry topic.
        taken = {got.get(timeout=30) for _ in range(3)}
    assert taken >= {(TOPIC, body.encode(), f"k-{body}") for body in "abc"}


def test_a_group_that_gave_nothing_up_is_told(run: Run) -> None:
    assert run("list") == []
    assert "topic_unknown" in run("show", "nobody", code=2)
    assert "topic_unknown" in run("redrive", "nobody", code=2)


def test_large_letters_go_in_several_requests(
    broker: InProcessBroker, calls: OwnCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redriving, "BYTES_MAX", 1)
    give_up(broker, calls, "a", "b")
    run_again = list(
        redriving.redrive(
            calls, redriving.letters(calls, GROUP), GROUP, redriving.Target.TOPIC, "ada"
        )
    )
    assert [one.outcome for one in run_again] == ["sent", "sent"]
