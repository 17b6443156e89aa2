"""Requests that the broker sends to consumers: notices, and questions that only they can answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from escrowmq.broker.net.connection import ClientConnection
from escrowmq.broker.net.requests import Request, handles
from escrowmq.broker.state.client_links import ClientDialect, ClientLink
from escrowmq.broker.state.clients import Clients
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.protocol.message.ids import parse_offset_message_id
from escrowmq.protocol.remoting.admin_headers import ConsumeDirectlyHeader, RunningInfoHeader
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.frames import OPAQUE_MAX, RemotingFrame, encode_request
from escrowmq.protocol.remoting.headers import Header
from escrowmq.store.reading.reader import StoreReader

WAIT_S = 10.0
ASKED_MAX = 1_024


class _Asked(NamedTuple):
    """A question that a consumer has not answered yet."""

    request: Request
    consumer: ClientLink
    until: float


class Relaying:
    """Handles GET_CONSUMER_RUNNING_INFO and CONSUME_MESSAGE_DIRECTLY."""

    def __init__(
        self,
        *,
        clients: Clients[ClientLink],
        reader: StoreReader,
        next_opaque: Callable[[], int],
    ) -> None:
        self._clients = clients
        self._reader = reader
        self._next_opaque = next_opaque
        #: By the number of our request, oldest first.
        self._asked: dict[int, _Asked] = {}

    @handles(RequestCode.GET_CONSUMER_RUNNING_INFO)
    def running_info(self, request: Request) -> None:
        """Ask a consumer for its own status."""
        header = request.header(RunningInfoHeader)
        self._ask(request, header, header.consumer_group, header.client_id, b"")

    @handles(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    def consume_directly(self, request: Request) -> None:
        """Have a consumer handle one message now, out of order."""
        header = request.header(ConsumeDirectlyHeader)
        _, log_offset = parse_offset_message_id(header.offset_message_id)
        located = self._reader.at(log_offset)
        if located is None or not located.is_visible:
            raise RequestRefused(
                "message_unknown", "no such message is visible", log_offset=log_offset
            )
        self._ask(request, header, header.consumer_group, header.client_id, located.message)

    def _ask(
        self, request: Request, header: Header, group_name: str, client_id: str, body: bytes
    ) -> None:
        group = self._clients.consumers(group_name)
        member = group.members.get(client_id) if group is not None else None
        if member is None or member.dialect is ClientDialect.GRPC:
            # A gRPC client does not take these questions.
            raise RequestRefused(
                "consumer_offline",
                "no such consumer is online with remoting",
                consumer_group=group_name,
                client_id=client_id,
            )
        if len(self._asked) >= ASKED_MAX:
            raise Unavailable("too_many_questions", "ask again a little later")
        opaque = self._next_opaque()
        until = asyncio.get_running_loop().time() + WAIT_S
        self._asked[opaque] = _Asked(request, member.connection, until)
        member.connection.send(encode_request(request.frame.code, opaque, header=header, body=body))

    def answered(self, connection: ClientConnection, frame: RemotingFrame) -> None:
        """Pass a consumer's answer on to the asking tool; ignore one without an open request."""
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


class GroupNotices:
    """Sends notices to the members of consumer groups. Use it from one event loop only."""

    def __init__(self, clients: Clients[ClientLink]) -> None:
        self._clients = clients
        self._opaque = count(1)

    def next_opaque(self) -> int:
        """Return the number for the broker's next own request."""
        return next(self._opaque) & OPAQUE_MAX

    def send(self, group: str, code: RequestCode, header: Header, body: bytes = b"") -> None:
        """Send a one-way request to each member of a group that is online with remoting."""
        online = self._clients.consumers(group)
        for member in online.members.values() if online is not None else ():
            if member.dialect is not ClientDialect.GRPC:
                opaque = self.next_opaque()
                member.connection.send(
                    encode_request(code, opaque, header=header, body=body, is_one_way=True)
                )
