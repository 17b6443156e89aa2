"""The broker logs answers of producers that publish nothing, with their remarks, within a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.broker.checks.end_log import LOGGED_MAX
from escrowmq.protocol.message.limits import SHOWN_CHARS_MAX
from escrowmq.protocol.remoting.frames import encode_request
from escrowmq.transaction.states import State
from tests.unit.broker.asking import row
from tests.unit.broker.wire import (
    COMMIT,
    END,
    ROLLBACK,
    SEND,
    UNKNOWN,
    Peer,
    ending,
    half,
    sending,
    serving,
)
from tests.unit.logged import facts

EVENTS = ("check_answered", "local_transaction_unknown")


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, object, object]]:
    """Return the event, the answer and the remark of each line about an answer."""
    return [
        (event, line["answer"], line["remark"]) for event in EVENTS for line in facts(caplog, event)
    ]


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize(
    ("said", "is_check_answer", "expected"),
    [
        (UNKNOWN, True, [("check_answered", "unknown", "why")]),
        (ROLLBACK, True, [("check_answered", "rollback", "why")]),
        # RocketMQ warns here too, with the text of the local transaction's exception.
        (UNKNOWN, False, [("local_transaction_unknown", "unknown", "why")]),
        # The ordinary ends of a transaction.
        (ROLLBACK, False, []),
        (COMMIT, False, []),
        (COMMIT, True, []),
    ],
)
async def test_an_answer_that_publishes_nothing_is_logged_with_its_remark(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    said: int,
    expected: list[tuple[str, object, object]],
    *,
    is_check_answer: bool,
    is_binary: bool,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t"), b"x")
        header = ending(answer, said, is_check_answer=is_check_answer)
        peer.write(
            encode_request(
                END, 0, header=header, remark="why", is_one_way=True, is_binary=is_binary
            )
        )
        await peer.ask(SEND, sending(), b"after it")
        assert logged(caplog) == expected
        for event, _, _ in expected:
            (line,) = facts(caplog, event)
            assert line["levelname"] == "WARNING"
            assert (line["producer_group"], line["transaction_id"]) == (header.producer_group, "t")
            assert line["half_offset"] == 0


async def test_only_an_accepted_first_answer_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t"), b"x")
        await peer.ask(END, ending(answer, ROLLBACK, is_check_answer=True, producer_group="others"))
        assert logged(caplog) == []
        for _ in range(2):
            await peer.ask(END, ending(answer, ROLLBACK, is_check_answer=True))
        assert logged(caplog) == [("check_answered", "rollback", "")]
        assert row(server).state is State.ROLLED_BACK


async def test_lines_and_remarks_are_limited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t"), b"x")
        unknown = ending(answer, UNKNOWN, is_check_answer=True)
        remark = "x" * (SHOWN_CHARS_MAX + 1)
        for _ in range(LOGGED_MAX + 5):
            peer.write(encode_request(END, 0, header=unknown, remark=remark, is_one_way=True))
        await peer.ask(END, ending(answer, ROLLBACK, is_check_answer=True))
    unknowns = [("check_answered", "unknown", "x" * SHOWN_CHARS_MAX)] * LOGGED_MAX
    # Another kind of answer has its own limit.
    assert logged(caplog) == [*unknowns, ("check_answered", "rollback", "")]
