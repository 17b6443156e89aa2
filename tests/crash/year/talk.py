"""Requests to the broker, as clients, sinks and administrators send them."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from escrowmq.model.sink_attempt import GROUP_PREFIX
from escrowmq.protocol.message.stored_message import StoredMessage, decode_many
from escrowmq.protocol.native.operator_headers import DeleteTopicHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import AttemptRow
from escrowmq.protocol.native.sink_headers import DecideBatchHeader
from escrowmq.protocol.remoting.admin_headers import CreateTopicHeader, TopicHeader
from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.client_bodies import (
    ConsumerMembership,
    Heartbeat,
    ProducerMembership,
    SubscriptionBody,
)
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import (
    PullHeader,
    QueryOffsetHeader,
    QueueHeader,
    UpdateOffsetHeader,
)
from escrowmq.protocol.remoting.frames import RemotingFrame, encode_request
from tests.unit.broker.native_peer import ask, hold, sent
from tests.unit.broker.wire import COMMIT, END, ROLLBACK, SEND, Peer, ending, facts, sending

if TYPE_CHECKING:
    from escrowmq.protocol.native.frames import NativeReply

PULL = RequestCode.PULL_MESSAGE
SUBSCRIBES = 4
#: Above the numbers of requests whose answers are awaited.
_opaque = count(10_000_000)


class Refused(Exception):
    """The broker refused a request, with its reason."""


def checked(answer: RemotingFrame) -> RemotingFrame:
    """Return the answer; raise if it is a refusal."""
    if answer.code != ResponseCode.SUCCESS:
        raise Refused(f"{answer.code}: {answer.remark}")
    return answer


class Talk:
    """One connection to the broker."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    # Messages.

    async def send(self, topic: str, queue_id: int, body: str, **properties: str) -> None:
        """Send an ordinary message; raise Refused unless it was stored."""
        header = sending(topic, properties, queue_id=queue_id)
        checked(await self.peer.ask(SEND, header, body.encode()))

    def send_and_leave(self, topic: str, queue_id: int, body: str) -> None:
        """Send an ordinary message without waiting for the answer."""
        header = sending(topic, {}, queue_id=queue_id)
        self.peer.write(encode_request(SEND, next(_opaque), header=header, body=body.encode()))

    async def hold(
        self, topic: str, queue_id: int, body: str, group: str, **more: str
    ) -> RemotingFrame:
        """Send a half message."""
        properties = {"UNIQ_KEY": body, "TRAN_MSG": "true", "PGROUP": group, **more}
        header = sending(topic, properties, queue_id=queue_id, producer_group=group, sys_flag=4)
        return checked(await self.peer.ask(SEND, header, body.encode()))

    async def end(self, held: dict[str, Any], *, is_commit: bool) -> RemotingFrame:
        """End a transaction; ``held`` has the fields of the header."""
        return await self.peer.ask(END, self._end(held, is_commit=is_commit))

    def end_and_leave(self, held: dict[str, Any], *, is_commit: bool) -> None:
        """End a transaction without waiting for the answer."""
        header = self._end(held, is_commit=is_commit)
        self.peer.write(encode_request(END, next(_opaque), header=header))

    def _end(self, held: dict[str, Any], *, is_commit: bool) -> Any:  # noqa: ANN401 - a header
        from escrowmq.protocol.remoting.send_headers import EndTransactionHeader

        bits = COMMIT if is_commit else ROLLBACK
        return EndTransactionHeader(resolution_bits=bits, **held)

    # Reading.

    async def pull(
        self, topic: str, queue_id: int, offset: int, group: str = "auditor"
    ) -> RemotingFrame:
        """Pull from this offset; an answer without messages is allowed."""
        header = PullHeader(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            messages_max=1_000,
            sys_flag=SUBSCRIBES,
            commit_offset=0,
            wait_ms=0,
            subscription="*",
            subscription_version=0,
        )
        return await self.peer.ask(PULL, header)

    async def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return where a queue starts and ends."""
        header = QueueHeader(topic=topic, queue_id=queue_id)
        found = [
            int(facts(checked(await self.peer.ask(code, header)))["offset"])
            for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        ]
        return found[0], found[1]

    async def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit a group's offset."""
        header = UpdateOffsetHeader(
            consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
        )
        checked(await self.peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header))

    async def offset_of(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a group's offset, or None if the broker does not know it."""
        header = QueryOffsetHeader(
            consumer_group=group, topic=topic, queue_id=queue_id, zero_if_none=False
        )
        answer = await self.peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return int(facts(checked(answer))["offset"])

    async def beat(self, client_id: str, producer: str, consumer: str, topic: str) -> None:
        """Send a client's heartbeat."""
        wants = (SubscriptionBody(topic=topic, version=1),)
        said = Heartbeat(
            client_id=client_id,
            producers=(ProducerMembership(group=producer),),
            consumers=(ConsumerMembership(group=consumer, subscriptions=wants),),
        )
        checked(await self.peer.ask(RequestCode.HEART_BEAT, body=encode_body(said)))

    # Topics.

    async def make_topic(self, name: str, queues: int) -> None:
        """Make a topic."""
        header = CreateTopicHeader(
            topic=name,
            default_topic="TBW102",
            read_queue_count=queues,
            write_queue_count=queues,
            permissions=6,
            filter_type="SINGLE_TAG",
            attributes="",
        )
        checked(await self.peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header))

    async def deletes_topic(self, name: str) -> bool:
        """Delete a topic as RocketMQ's tools do; False if it was refused."""
        header = TopicHeader(topic=name)
        answer = await self.peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header)
        return answer.code == ResponseCode.SUCCESS

    async def delete_by_force(self, name: str) -> None:
        """Delete a topic with undecided half messages."""
        header = DeleteTopicHeader(topic=name, by="operator", is_forced=True)
        await ask(self.peer, NativeCode.DELETE_TOPIC, header)

    # Sinks.

    async def hold_attempt(self, app_id: str, attempt: str, topic: str, bodies: list[str]) -> None:
        """Hold the rows of one task of a Spark sink."""
        rows = [sent(body.encode(), topic, queue_id=0) for body in bodies]
        await hold(
            self.peer, attempt, *rows, producer_group=f"{GROUP_PREFIX}{app_id}", is_bulk=True
        )

    async def decide_batch(
        self, app_id: str, query_id: str, number: int, attempt: str, messages: int
    ) -> str:
        """Commit a batch; return the outcome."""
        header = DecideBatchHeader(app_id=app_id, query_id=query_id, batch_number=number, by="year")
        row = AttemptRow(transaction_id=attempt, last_number=0, messages=messages)
        answer: NativeReply = await ask(self.peer, NativeCode.DECIDE_BATCH, header, [row])
        return str(answer.header.outcome)


def messages_of(answer: RemotingFrame) -> list[StoredMessage]:
    """Return the messages of a pull."""
    return decode_many(answer.body) if answer.code == ResponseCode.SUCCESS else []


def ending_of(answer: RemotingFrame, group: str, topic: str) -> dict[str, Any]:
    """Header fields that end the transaction of a half message, from the broker's answer to it."""
    header = ending(answer, 0, producer_group=group, topic=topic)
    fields = ("topic", "producer_group", "half_offset", "log_offset", "unique_key")
    return {name: getattr(header, name) for name in fields}
