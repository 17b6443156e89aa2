"""Finds single messages by key or by id."""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.broker.net.requests import Request, handles
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.message_views import half_topic_view
from escrowmq.protocol.remoting.admin_headers import (
    QueryMessageHeader,
    QueryMessageResponseHeader,
    ViewMessageHeader,
)
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.store.reading.reader import StoreReader
from escrowmq.store.store import Store

QUERIED_MAX = 64


@dataclass(frozen=True, slots=True)
class Querying:
    """Handles QUERY_MESSAGE and VIEW_MESSAGE_BY_ID."""

    store: Store
    reader: StoreReader

    @handles(RequestCode.QUERY_MESSAGE)
    def query(self, request: Request) -> None:
        """Answer with visible messages that have a key, newest first."""
        header = request.header(QueryMessageHeader)
        found = self.reader.find(
            header.topic,
            header.key,
            limit=min(max(header.messages_max, 1), QUERIED_MAX),
            from_ms=header.begin_at_ms,
            until_ms=header.end_at_ms,
        )
        store = self.store
        fields = QueryMessageResponseHeader(
            indexed_at_ms=store.last_at_ms, indexed_log_offset=store.durable_end
        )
        code = ResponseCode.SUCCESS if found else ResponseCode.QUERY_NOT_FOUND
        request.answer(code, header=fields, body=b"".join(found))

    @handles(RequestCode.VIEW_MESSAGE_BY_ID)
    def view(self, request: Request) -> None:
        """Answer with the message at a log offset; an invisible one looks as on the half topic."""
        header = request.header(ViewMessageHeader)
        located = self.reader.at(header.log_offset)
        if located is None:
            raise RequestRefused(
                "message_unknown", "no message is stored there", log_offset=header.log_offset
            )
        message = located.message
        if not located.is_visible and located.half is not None:
            message = half_topic_view(message, located.half.half_offset)
        request.answer(ResponseCode.SUCCESS, body=message)
