"""Log lines of a consumer under a plain formatter, and limits on how often they repeat."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from escrowmq.client.consumer import consuming, queue_reader
from escrowmq.client.messages.handling import FAILURES_LOGGED_MAX, GiveUp
from escrowmq.client.messages.messages import Received
from escrowmq.client.network import member
from escrowmq.model.event_log import event_log
from escrowmq.model.log_limit import KEYS_MAX, LogLimit
from tests.unit.broker.wire import eventually, make_topic, serving
from tests.unit.client.consumers import ORDERS, consumer, send, served
from tests.unit.logged import events, facts


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consuming, "TRY_AGAIN_S", 0.01)
    monkeypatch.setattr(consuming, "SHARE_S", 0.01)
    monkeypatch.setattr(queue_reader, "RETRY_S", 0.01)
    monkeypatch.setattr(member, "RETRY_MAX_S", 0.02)


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    formatted = map(logging.Formatter().format, caplog.records)
    return [line for line in formatted if line.startswith(f"{event} ")]


async def test_a_failed_handler_names_the_message_and_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1")
        ours = consumer(server)

        @ours.subscribe(ORDERS)
        def ship(_message: Received) -> None:
            raise ValueError("no such address")

        async with ours:
            await eventually(lambda: lines(caplog, "handler_failed"))
    (line,) = lines(caplog, "handler_failed")
    assert line.startswith(
        "handler_failed topic='orders' message_id='id-1' retries=0"
        " why='ValueError: no such address'\nTraceback"
    )


async def test_many_failures_are_counted_instead_of_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as server:
        await send(server, *(b"%d" % number for number in range(50)))
        handled: list[str] = []
        ours = consumer(server)

        @ours.subscribe(ORDERS)
        def ship(message: Received) -> None:
            handled.append(message.message_id)
            raise (KeyError if len(handled) == 50 else ValueError)(message.message_id)

        async with ours:
            await eventually(lambda: len(handled) == 50)
            await eventually(lambda: "KeyError" in str(lines(caplog, "handler_failed")))
    failed = lines(caplog, "handler_failed")
    # An error of another kind is logged even after the limit for the first kind.
    assert len(failed) == FAILURES_LOGGED_MAX + 1


async def test_a_handler_that_gives_up_is_not_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as server:
        await send(server, *(b"%d" % number for number in range(30)))
        ours = consumer(server)

        @ours.subscribe(ORDERS)
        def ship(_message: Received) -> None:
            raise GiveUp("unknown customer")

        def dead() -> int:
            queue = server.broker.reader.queue("%DLQ%ship", 0)
            return 0 if queue is None else queue.end

        async with ours:
            await eventually(lambda: dead() == 30)
    told = lines(caplog, "message_given_up")
    assert len(told) == 10
    ids = {str(one["message_id"]) for one in facts(caplog, "message_given_up")}
    assert len(ids) == 10
    assert "group='ship' topic='orders' message_id='id-" in told[0]
    assert told[0].endswith("retries=0 dead_letters='%DLQ%ship' why='GiveUp: unknown customer'")


async def test_the_last_retry_says_that_the_message_is_a_dead_letter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1")
        ours = consumer(server, retries_max=0)
        ours.subscribe(ORDERS)(lambda _message: 1 // 0)
        async with ours:
            await eventually(lambda: lines(caplog, "message_given_up"))
    (told,) = facts(caplog, "message_given_up")
    assert (told["message_id"], told["dead_letters"]) == ("id-1", "%DLQ%ship")
    assert str(told["why"]).startswith("ZeroDivisionError: ")


async def test_a_broadcast_consumer_says_that_nothing_keeps_the_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as server:
        await send(server, b"1")
        ours = consumer(server, broadcast=True)
        ours.subscribe(ORDERS)(lambda _message: 1 // 0)
        async with ours:
            await eventually(lambda: lines(caplog, "message_given_up"))
    (told,) = facts(caplog, "message_given_up")
    assert str(told["dead_letters"]).startswith("none")


@pytest.mark.parametrize("auto_create", [True, False])
async def test_a_missing_topic_is_told_once_and_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, auto_create: bool
) -> None:
    caplog.set_level(logging.INFO, "escrowmq.client")
    async with serving(tmp_path, topics={"auto_create": auto_create}) as server:
        await make_topic(server, ORDERS)
        await send(server, b"1")
        got: list[str] = []
        rounds: list[str] = []
        ours = consumer(server)
        ours.subscribe("nowhere")(lambda message: got.append(message.topic))
        ours.subscribe(ORDERS)(lambda message: got.append(message.topic))
        async with ours:
            await eventually(lambda: got == [ORDERS])
            core = ours._core
            assert core is not None
            share = core._share

            async def counted() -> None:
                await share()
                rounds.append("shared")

            core._share = counted  # type: ignore[method-assign] # counts the rounds
            await eventually(lambda: len(rounds) > 20)
            (line,) = lines(caplog, "topic_missing")
            assert line == (
                "topic_missing group='ship' topic='nowhere'"
                " why='the topic does not exist; the consumer reads it as soon as it does'"
            )
            assert "sharing_failed" not in events(caplog)
            await make_topic(server, "nowhere")
            await eventually(lambda: lines(caplog, "topic_found"))


async def test_a_broker_that_is_away_is_told_once_with_its_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "escrowmq.client")
    async with served(tmp_path, queues=8) as server:
        ports = [
            int(address.rpartition(":")[2])
            for address in (server.name_address, server.broker_address)
        ]
        address = server.broker_address
        tried: list[str] = []
        ours = consumer(server)
        ours.subscribe(ORDERS)(lambda _message: None)
        await ours.start()
        core = ours._core
        assert core is not None
        await eventually(lambda: len(core.places) >= 8)
    connect = core.member.network.connection

    async def counted(where: str) -> object:
        tried.append(where)
        return await connect(where)

    core.member.network.connection = counted  # type: ignore[method-assign, assignment]
    await eventually(lambda: tried.count(address) > 30)
    (away,) = lines(caplog, "broker_away")
    assert away.startswith(f"broker_away address='{address}' why='broker_unreachable")
    orders = [one for one in facts(caplog, "pull_failed") if one["topic"] == ORDERS]
    assert len(orders) == 1
    assert orders[0]["address"] == address
    name_port, port = ports
    async with serving(tmp_path, broker={"name_port": name_port, "port": port}):
        await eventually(lambda: lines(caplog, "broker_back"))
        await ours.close()


def test_a_limit_lets_a_burst_through_and_counts_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 0.0
    limit = LogLimit(event_log("escrowmq.tests"), burst=2, window_s=60.0, now_s=lambda: now_s)
    for _ in range(5):
        limit.warning("away", "a", {"x": 1})
    limit.warning("away", "b", {"x": 1})
    now_s = 60.0
    limit.warning("away", "a", {"x": 1})
    limit.warning("away", "a", {"x": 1})
    texts = [record.getMessage() for record in caplog.records]
    assert texts == ["away x=1"] * 3 + ["away x=1 unlogged=3", "away x=1"]
    assert {record.funcName for record in caplog.records} == {
        "test_a_limit_lets_a_burst_through_and_counts_the_rest"
    }
    assert limit.forget("away", "a")
    assert not limit.forget("away", "a")


def test_a_limit_remembers_a_limited_number_of_keys() -> None:
    limit = LogLimit(event_log("escrowmq.tests"), burst=1, window_s=60.0)
    for number in range(3 * KEYS_MAX):
        limit.warning("away", number, {"x": 1})
    assert len(limit._windows) <= KEYS_MAX
