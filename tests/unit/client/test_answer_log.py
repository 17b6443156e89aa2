"""A producer logs a warning for each check that it answers with ROLLBACK or UNKNOWN, in a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from escrowmq.broker.server import Server
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.messages.messages import Message, Received
from escrowmq.client.producer.check_answers import ANSWERS_LOGGED_MAX
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.model.resolution import Resolution
from tests.unit.broker.wire import eventually, serving
from tests.unit.client.apache_like import play_apache
from tests.unit.client.test_producer import check_all
from tests.unit.logged import facts

CLIENT = "escrowmq.client"
BROKER = "escrowmq.broker"


def logged(caplog: pytest.LogCaptureFixture, logger: str = CLIENT) -> list[dict[str, object]]:
    """Return the lines about answers of the client or the broker."""
    lines = facts(caplog, "check_answered")
    return [line for line in lines if str(line["name"]).startswith(logger)]


def failed(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return facts(caplog, "check_failed")


class Listener:
    """Listener that leaves each transaction to its check, which gives one answer."""

    def __init__(self, answer: Resolution | None) -> None:
        self.answer = answer

    def execute_local_transaction(self, _message: Message, _arg: object) -> None:
        return None

    def check_local_transaction(self, _message: Received) -> Resolution | None:
        return self.answer


async def check(server: Server, is_over: Callable[[], object]) -> None:
    await eventually(lambda: server.broker.clients.producers("pay"))
    check_all(server)
    await eventually(is_over)


@pytest.mark.parametrize("is_apache", [False, True])
@pytest.mark.parametrize(
    ("answer", "shown"),
    [(Resolution.ROLLBACK, "rollback"), (Resolution.UNKNOWN, "unknown"), (None, "unknown")],
)
async def test_a_check_that_publishes_nothing_is_logged_by_producer_and_broker(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    answer: Resolution | None,
    shown: str,
    *,
    is_apache: bool,
) -> None:
    async with serving(tmp_path) as server:
        if is_apache:
            play_apache(server)
        with_listener = Producer(server.name_address, "pay", listener=Listener(answer))
        message = Message(topic="orders", body=b"1")
        done = await asyncio.to_thread(with_listener.send_in_transaction, message)
        await check(server, lambda: logged(caplog, BROKER))
        await asyncio.to_thread(with_listener.close)
        (line,) = logged(caplog)
        assert line["levelname"] == "WARNING"
        assert (line["answer"], line["transaction_id"]) == (shown, done.transaction_id)
        assert (line["producer_group"], line["topic"]) == ("pay", "orders")
        (heard,) = logged(caplog, BROKER)
        assert (heard["answer"], heard["producer_group"]) == (shown, "pay")


async def test_an_async_checker_is_logged_and_a_commit_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def look_up(message: Received) -> Resolution:
        return Resolution.COMMIT if message.body == b"yes" else Resolution.ROLLBACK

    async with (
        serving(tmp_path) as server,
        AsyncProducer(server.name_address, "pay", checker=look_up) as producer,
    ):
        await producer.send_half("orders", b"yes")
        no = await producer.send_half("orders", b"no")
        await check(server, lambda: logged(caplog, BROKER))
        assert [line["transaction_id"] for line in logged(caplog)] == [no.transaction_id]


async def test_an_error_is_logged_once_and_not_as_an_answer_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def look_up(_message: Received) -> Resolution:
        raise LookupError("no table")

    async with (
        serving(tmp_path) as server,
        AsyncProducer(server.name_address, "pay", checker=look_up) as producer,
    ):
        for _ in range(ANSWERS_LOGGED_MAX + 5):
            await producer.send_half("orders", b"1")
        await check(server, lambda: len(logged(caplog, BROKER)) == ANSWERS_LOGGED_MAX)
        assert len(failed(caplog)) == ANSWERS_LOGGED_MAX
        assert failed(caplog)[0]["why"] == "LookupError: no table"
        assert logged(caplog) == []


async def test_lines_of_one_kind_are_limited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def look_up(message: Received) -> Resolution:
        return Resolution.ROLLBACK if message.body == b"no" else Resolution.UNKNOWN

    async with (
        serving(tmp_path) as server,
        AsyncProducer(server.name_address, "pay", checker=look_up) as producer,
    ):
        for body in [b"no"] * (ANSWERS_LOGGED_MAX + 5) + [b"?"]:
            await producer.send_half("orders", body)
        await check(server, lambda: len(logged(caplog, BROKER)) == ANSWERS_LOGGED_MAX + 1)
        answers = sorted(str(line["answer"]) for line in logged(caplog))
        assert answers == ["rollback"] * ANSWERS_LOGGED_MAX + ["unknown"]


async def test_a_ledger_that_cannot_tell_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = SqlLedger(f"sqlite:///{tmp_path / 'shop.db'}")
    ledger.create()
    async with (
        serving(tmp_path / "broker") as server,
        AsyncProducer(server.name_address, "pay", ledger=ledger) as producer,
    ):
        # There is no row, and the sender still has time to write it.
        it = await producer._core.started()
        await it.hold("t", [Message(topic="orders", body=b"1")], ledger=ledger.uuid())
        await check(server, lambda: logged(caplog, BROKER))
        (line,) = logged(caplog)
        assert line["answer"] == "unknown"
        assert str(line["why"]).startswith("ledger: ")
