"""A broker that stops answers what waits: pulls, pops and questions, in both protocols."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.broker.grpc.names import duration
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.remoting import pop_headers
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from tests.conformance.pop_talk import POP, popping
from tests.conformance.talk import beat, pulling
from tests.unit.broker.grpc_consuming import READERS, receiving
from tests.unit.broker.grpc_peer import GrpcPeer, message, subscribing
from tests.unit.broker.test_delivering import MAY_WAIT, PULL, SUBSCRIBES
from tests.unit.broker.wire import DEADLINE_S, Peer, eventually, facts, serving

if TYPE_CHECKING:
    import pytest

WAIT_MS = 60_000


async def test_whatever_waits_is_answered_when_the_broker_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        client = GrpcPeer.of(server)
        peer, other, third = [await Peer.to(server.broker_address) for _ in range(3)]
        await client.send(message())
        await client.tell(subscribing("readers", "orders"))
        await beat(peer)
        end = server.broker.store.queues[0].end
        queue = grpc.MessageQueue(topic=grpc.Resource(name="orders"), id=1)
        streams = [
            client.begin("ReceiveMessage", receiving(WAIT_MS, tags="none")),
            client.begin(
                "PullMessage",
                grpc.PullMessageRequest(
                    group=READERS,
                    message_queue=queue,
                    offset=end,
                    batch_size=1,
                    filter_expression=grpc.FilterExpression(type=1, expression="*"),
                    long_polling_timeout=duration(WAIT_MS),
                ),
            ),
        ]
        question = pop_headers.NotificationHeader(
            consumer_group="shop", topic="orders", queue_id=0, wait_ms=WAIT_MS
        )
        pull = pulling(end, sys_flag=SUBSCRIBES | MAY_WAIT, wait_ms=WAIT_MS)
        asked = [
            asyncio.ensure_future(peer.ask(POP, popping(wait_ms=WAIT_MS, expression="none"))),
            asyncio.ensure_future(other.ask(RequestCode.NOTIFICATION, question)),
            asyncio.ensure_future(third.ask(PULL, pull)),
        ]
        broker = server.broker
        await eventually(lambda: broker.popping.polls.waiting == 3)
        await eventually(lambda: broker.pulling.polls.waiting == 1)
        await server.stop()
        monkeypatch.setattr(server, "stop", stopped)
        for call in streams:
            assert await asyncio.wait_for(call.ended, DEADLINE_S) == (0, "")
        answers = await asyncio.wait_for(asyncio.gather(*asked), DEADLINE_S)
        assert [one.code for one in answers] == [
            ResponseCode.POLLING_TIMEOUT,
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
        ]
        assert facts(answers[1])["hasMsg"] == "false"


async def stopped() -> None:
    """Stand in for the second stop of a broker."""
