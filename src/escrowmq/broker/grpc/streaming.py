"""Answers that are streams of messages: sent a few at a time, so that other clients are served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from escrowmq.broker.net.grpc_call import GrpcCall

TURN_S = 0.002
"""How long messages are encoded before the event loop may do other work."""


def stream(call: GrpcCall, messages: Iterator[bytes]) -> None:
    """Send all messages and end the call; stop if the client has gone."""
    loop = asyncio.get_running_loop()
    until = loop.time() + TURN_S
    for message in messages:
        if not call.send(message):
            return
        if loop.time() > until:
            loop.call_soon(stream, call, messages)
            return
    call.end()
