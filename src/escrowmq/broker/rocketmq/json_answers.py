"""Answers whose body is JSON, as RocketMQ's clients and tools read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.protocol.remoting.bodies import JsonBody, encode_body

if TYPE_CHECKING:
    from escrowmq.broker.net.requests import Request


def answer_json(request: Request, body: JsonBody) -> None:
    """Answer a request with this body."""
    request.answer(body=encode_body(body))
