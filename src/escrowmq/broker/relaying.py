"""Forwards questions that only a consumer can answer, and returns its answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from escrowmq.broker.requests import Handlers, Request
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.protocol.admin_headers import ConsumeDirectlyHeader, RunningInfoHeader
from escrowmq.protocol.codes import RequestCode, ResponseCode
from escrowmq.protocol.ids import parse_offset_message_id
from escrowmq.protocol.remoting import encode_request

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.broker.connection import Connection
    from escrowmq.protocol.headers import Header
    from escrowmq.protocol.remoting import Frame

WAIT_S = 10.0
ASKED_MAX = 1_024


class _Asked(NamedTuple):
    """A question that a consumer has not answered yet."""

    request: Request
    consumer: Connection
    until: float


class Relaying:
    """Handles GET_CONSUMER_RUNNING_INFO and CONSUME_MESSAGE_DIRECTLY."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: By the number of our request, oldest first.
        self._asked: dict[int, _Asked] = {}

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    def running_info(self, request: Request) -> None:
        """Ask a consumer for its own status."""
        header = request.header(RunningInfoHeader)
        self._ask(request, header, header.consumer_group, header.client_id, b"")

    def consume_directly(self, request: Request) -> None:
        """Have a consumer handle one message now, out of order."""
        header = request.header(ConsumeDirectlyHeader)
        _, log_offset = parse_offset_message_id(header.offset_message_id)
        located = self._broker.reader.at(log_offset)
        if located is None or not located.is_visible:
            raise RequestRefused(
                "message_unknown", "no such message is visible", log_offset=log_offset
            )
        self._ask(request, header, header.consumer_group, header.client_id, located.message)

    def _ask(
        self, request: Request, header: Header, group_name: str, client_id: str, body: bytes
    ) -> None:
        group = self._broker.clients.consumers(group_name)
        member = group.members.get(client_id) if group is not None else None
        if member is None:
            raise RequestRefused(
                "consumer_offline",
                "no such consumer is online",
                consumer_group=group_name,
                client_id=client_id,
            )
        if len(self._asked) >= ASKED_MAX:
            raise Unavailable("too_many_questions", "ask again a little later")
        opaque = self._broker.next_opaque()
        until = asyncio.get_running_loop().time() + WAIT_S
        self._asked[opaque] = _Asked(request, member.connection, until)
        member.connection.send(encode_request(request.frame.code, opaque, header=header, body=body))

    def answered(self, connection: Connection, frame: Frame) -> None:
        """Return a consumer's answer; ignore one that no question is waiting for."""
        asked = self._asked.get(frame.opaque)
        if asked is not None and asked.consumer is connection:
            del self._asked[frame.opaque]
            asked.request.answer(frame.code, remark=frame.remark, body=frame.body)

    def give_up(self) -> None:
        """Answer the requests whose consumer timed out or disconnected."""
        now = asyncio.get_running_loop().time()
        for opaque, asked in list(self._asked.items()):
            if asked.until <= now or not asked.consumer.is_open:
                del self._asked[opaque]
                asked.request.answer(
                    ResponseCode.CONSUME_MSG_TIMEOUT, remark="the consumer does not answer"
                )
