"""Pausing a consumer group, with stock pulls, the SDK and the command line on a real broker."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from escrowmq import Consumer, Producer, Received
from escrowmq.cli.main import main
from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.cluster_bodies import GroupConfig
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import PullHeader, PullResponseHeader
from escrowmq.protocol.remoting.headers import read_header
from escrowmq.testing import InProcessBroker
from tests.unit.broker.wire import Peer

Run = Callable[..., Any]
GROUP, TOPIC = "shipping", "paid"
WAIT_S = 20
SUSPEND, SUBSCRIPTION = 2, 4


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(queue_count=1) as running:
        running.create_topic(TOPIC)
        yield running


@pytest.fixture
def run(broker: InProcessBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(words: str, *, code: int = 0) -> Any:  # noqa: ANN401 - any JSON value
        with pytest.raises(SystemExit) as left:
            main([*words.split(), "--broker", broker.address, "-o", "json"])
        told = capsys.readouterr()
        assert left.value.code == code, told
        return json.loads(told.out) if told.out else told.err

    return run


def pull_header(offset: int = 0, wait_ms: int = 0) -> PullHeader:
    return PullHeader(
        consumer_group=GROUP,
        topic=TOPIC,
        queue_id=0,
        queue_offset=offset,
        messages_max=8,
        sys_flag=SUBSCRIPTION | (SUSPEND if wait_ms else 0),
        commit_offset=0,
        wait_ms=wait_ms,
        subscription="*",
        subscription_version=0,
        expression_type="TAG",
    )


async def pulled(broker: InProcessBroker, header: PullHeader) -> tuple[int, int]:
    peer = await Peer.to(broker.broker_address)
    frame = await peer.ask(RequestCode.PULL_MESSAGE, header)
    peer.close()
    return frame.code, read_header(PullResponseHeader, frame.ext).next_offset


def send(broker: InProcessBroker, *bodies: bytes) -> None:
    with Producer(broker.address, "orders") as producer:
        for body in bodies:
            producer.send(TOPIC, body)


def test_a_stock_pull_of_a_paused_group_finds_nothing_and_stays_where_it_is(
    broker: InProcessBroker, run: Run
) -> None:
    send(broker, b"1", b"2")
    assert asyncio.run(pulled(broker, pull_header())) == (ResponseCode.SUCCESS, 2)
    told = run(f"group pause {GROUP} --reason upgrade")
    assert told == {"group": GROUP, "is_paused": True, "is_changed": True, "is_dry_run": False}
    assert asyncio.run(pulled(broker, pull_header(1))) == (ResponseCode.PULL_NOT_FOUND, 1)
    # The broker does not correct an offset that is out of range either.
    assert asyncio.run(pulled(broker, pull_header(99))) == (ResponseCode.PULL_NOT_FOUND, 99)
    run(f"group resume {GROUP}")
    assert asyncio.run(pulled(broker, pull_header(1))) == (ResponseCode.SUCCESS, 2)
    assert asyncio.run(pulled(broker, pull_header(99))) == (ResponseCode.PULL_OFFSET_MOVED, 2)


def test_a_pull_that_waits_gets_nothing_while_paused_and_is_answered_when_resumed(
    broker: InProcessBroker, run: Run
) -> None:
    asyncio.run(pulled(broker, pull_header()))

    async def wait_over_a_resume(paused_first: bool) -> tuple[int, int]:  # noqa: FBT001 - a case
        peer = await Peer.to(broker.broker_address)
        if paused_first:
            await asyncio.to_thread(run, f"group pause {GROUP}")
        asked = asyncio.ensure_future(
            peer.ask(RequestCode.PULL_MESSAGE, pull_header(0, wait_ms=30_000))
        )
        while (await asyncio.to_thread(run, "status"))["pulls_waiting"] == 0:
            pass
        if not paused_first:
            await asyncio.to_thread(run, f"group pause {GROUP}")
        await asyncio.to_thread(send, broker, b"1")
        assert not asked.done()
        await asyncio.to_thread(run, f"group resume {GROUP}")
        frame = await asyncio.wait_for(asked, WAIT_S)
        peer.close()
        return frame.code, read_header(PullResponseHeader, frame.ext).next_offset

    # The pull waited before the pause. Its offset was checked, so it gets the message.
    assert asyncio.run(wait_over_a_resume(paused_first=False)) == (ResponseCode.SUCCESS, 1)
    # The pull came during the pause. The broker tells it to retry, and checks its offset then.
    assert asyncio.run(wait_over_a_resume(paused_first=True)) == (ResponseCode.PULL_NOT_FOUND, 0)


def test_a_consumer_of_the_sdk_goes_on_where_it_stopped_also_over_a_restart(
    broker: InProcessBroker, run: Run
) -> None:
    got: queue.Queue[bytes] = queue.Queue()

    def handle(message: Received) -> None:
        got.put(message.body)

    def consumer() -> Consumer:
        made = Consumer(broker.address, GROUP)
        made.subscribe(TOPIC)(handle)
        return made

    with consumer():
        send(broker, b"1")
        assert got.get(timeout=WAIT_S) == b"1"
    run(f"group pause {GROUP}")
    send(broker, b"2")
    broker.restart()
    assert run("status")["groups_paused"] == 1
    with consumer():
        while not (consumers := run("status"))["consumers_online"]:
            pass
        while not run("status")["pulls_waiting"]:
            pass
        assert consumers["groups_paused"] == 1
        assert got.empty()
        run(f"group resume {GROUP}")
        assert got.get(timeout=WAIT_S) == b"2"


def test_listings_show_the_pause_and_tools_do_not_take_it_away(
    broker: InProcessBroker, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(pulled(broker, pull_header()))
    assert run(f"group pause {GROUP} --dry-run")["is_changed"]
    assert run("group list")[0]["paused_at_ms"] is None
    run(f"group pause {GROUP} --reason upgrade")
    assert not run(f"group pause {GROUP}")["is_changed"]

    async def update() -> None:
        peer = await Peer.to(broker.broker_address)
        body = encode_body(GroupConfig(name=GROUP, retries_max=3))
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        peer.close()

    asyncio.run(update())
    (row,) = run("group list")
    assert (row["group"], row["role"]) == (GROUP, "consumer")
    assert row["paused_at_ms"] == broker.clock.now_ms()
    with pytest.raises(SystemExit):
        main(["group", "show", GROUP, "--broker", broker.address])
    assert "PAUSED since" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["status", "--broker", broker.address])
    assert "1: see escrowmq group list" in capsys.readouterr().out


def test_a_pause_of_an_unknown_group_is_refused(run: Run) -> None:
    assert "group_unknown" in run("group pause nobody", code=2)
    assert "group_unknown" in run("group pause nobody --dry-run", code=2)


def test_transactions_are_decided_while_a_group_is_paused(
    broker: InProcessBroker, run: Run
) -> None:
    asyncio.run(pulled(broker, pull_header()))
    run(f"group pause {GROUP}")
    with Producer(broker.address, "orders") as producer, producer.begin() as tx:
        tx.send(TOPIC, b"1")
    assert [one.body for one in broker.messages(TOPIC)] == [b"1"]
