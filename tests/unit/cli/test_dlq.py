"""Dead letters are listed, shown and sent again, each exactly once."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from escrowmq import Consumer, Received
from escrowmq.cli.main import main
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.testing import InProcessBroker
from tests.unit.client.dead_letters import GROUP, TOPIC, bodies, give_up

Run = Callable[..., Any]


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(queue_count=1) as running:
        yield running


@pytest.fixture
def calls(broker: InProcessBroker) -> Iterator[NativeCalls]:
    with NativeCalls(broker.broker_address) as calls:
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


@pytest.fixture
def letters(broker: InProcessBroker, calls: NativeCalls) -> None:
    give_up(broker, calls, "a", "b", "c")


@pytest.mark.usefixtures("letters")
def test_dead_letters_are_listed_and_shown(run: Run) -> None:
    assert run("list") == [{"group": GROUP, "letters": 3, "topic": f"%DLQ%{GROUP}"}]
    shown = run("show", GROUP)
    assert [(row["topic"], row["body_preview"], row["was_sent_again"]) for row in shown] == [
        (TOPIC, body, False) for body in "abc"
    ]
    assert [row["body_preview"] for row in run("show", GROUP, "--limit", "1")] == ["a"]


def test_no_dead_letter_controls_the_terminal(
    broker: InProcessBroker, calls: NativeCalls, run: Run, capsys: pytest.CaptureFixture[str]
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
