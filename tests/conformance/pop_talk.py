"""Requests that the conformance tests send as pop consumers, and receipts as clients build them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from escrowmq.protocol.message.stored_message import StoredMessage, decode_many
from escrowmq.protocol.remoting import pop_headers
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.frames import RemotingFrame
from tests.unit.broker.wire import SEND, Peer, facts, sending

POP = RequestCode.POP_MESSAGE
ACK = RequestCode.ACK_MESSAGE
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
INVISIBLE_MS = 60_000


@dataclass
class Popped:
    """A message as the client sees it, with the receipt that the client builds."""

    message: StoredMessage
    receipt: str

    @property
    def body(self) -> str:
        return self.message.body.decode()

    def header(self, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of the header
        return {
            "consumer_group": "shop",
            "topic": "orders",
            "queue_id": self.message.queue_id,
            "receipt": self.receipt,
            "offset": self.message.queue_offset,
            **fields,
        }


def popping(**fields: Any) -> pop_headers.PopHeader:  # noqa: ANN401 - fields of the header
    values: dict[str, Any] = {
        "consumer_group": "shop",
        "topic": "orders",
        "queue_id": -1,
        "messages_max": 32,
        "invisible_ms": INVISIBLE_MS,
        "wait_ms": 0,
        "expression": "*",
        **fields,
    }
    return pop_headers.PopHeader(**values)


def popped(answer: RemotingFrame) -> list[Popped]:
    """Build the receipts as RocketMQ's client does."""
    told = facts(answer)
    starts: dict[int, str] = {}
    offsets: dict[int, list[int]] = {}
    for text in told["startOffsetInfo"].split(";"):
        flag, name, start = text.split(" ")
        assert flag == "0"
        starts[int(name)] = start
    for text in told["msgOffsetInfo"].split(";"):
        _, name, found = text.split(" ")
        offsets[int(name)] = [int(one) for one in found.split(",")]
    messages = decode_many(answer.body)
    for queue_id, found_offsets in offsets.items():
        seen = [one.queue_offset for one in messages if one.queue_id == queue_id]
        assert sorted(seen) == found_offsets
    facts_of_all = (told["popTime"], told["invisibleTime"], told["reviveQid"], "0", "broker-a")
    return [
        Popped(
            one,
            " ".join(
                (starts[one.queue_id], *facts_of_all, str(one.queue_id), str(one.queue_offset))
            ),
        )
        for one in messages
    ]


async def pop(peer: Peer, **fields: Any) -> list[Popped]:  # noqa: ANN401 - fields of the header
    answer = await peer.ask(POP, popping(**fields))
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return []
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return popped(answer)


async def ack(peer: Peer, one: Popped, **fields: Any) -> int:  # noqa: ANN401 - fields
    return (await peer.ask(ACK, pop_headers.AckHeader(**one.header(**fields)))).code


async def send(peer: Peer, *bodies: str, **fields: Any) -> None:  # noqa: ANN401 - fields
    for body in bodies:
        answer = await peer.ask(SEND, sending(**fields), body.encode())
        assert answer.code == ResponseCode.SUCCESS


def facts_time(one: Popped) -> str:
    return one.receipt.split(" ")[1]
