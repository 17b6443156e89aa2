"""Finds single messages by key or by id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.requests import Handlers, Request
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.admin_headers import (
    QueryMessageHeader,
    QueryMessageResponseHeader,
    ViewMessageHeader,
)
from escrowmq.protocol.codes import RequestCode, ResponseCode
from escrowmq.protocol.message_views import half_topic_view

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker

QUERIED_MAX = 64


class Querying:
    """Handles QUERY_MESSAGE and VIEW_MESSAGE_BY_ID."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""
        return {
            RequestCode.QUERY_MESSAGE: self.query,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view,
        }

    def query(self, request: Request) -> None:
        """Answer with visible messages that have a key, newest first."""
        header = request.header(QueryMessageHeader)
        found = self._broker.reader.find(
            header.topic,
            header.key,
            limit=min(max(header.messages_max, 1), QUERIED_MAX),
            from_ms=header.begin_at_ms,
            until_ms=header.end_at_ms,
        )
        store = self._broker.store
        fields = QueryMessageResponseHeader(
            indexed_at_ms=store.last_at_ms, indexed_log_offset=store.settled
        )
        code = ResponseCode.SUCCESS if found else ResponseCode.QUERY_NOT_FOUND
        request.answer(code, header=fields, body=b"".join(found))

    def view(self, request: Request) -> None:
        """Answer with the message at a log offset; an invisible one looks as on the half topic."""
        header = request.header(ViewMessageHeader)
        located = self._broker.reader.at(header.log_offset)
        if located is None:
            raise RequestRefused(
                "message_unknown", "no message is stored there", log_offset=header.log_offset
            )
        message = located.message
        if not located.is_visible and located.half is not None:
            message = half_topic_view(message, located.half.half_offset)
        request.answer(ResponseCode.SUCCESS, body=message)
