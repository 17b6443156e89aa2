"""Answers that are streams of messages: sent a few at a time, so that other clients are served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from escrowmq.broker.net.grpc_call import GrpcCall

TURN_S = 0.002
"""How long an answer's messages are encoded at once while no connection waits for its turn."""


def stream(call: GrpcCall, messages: Iterator[bytes]) -> None:
    """Send all messages and end the call; stop if the client has gone."""
    now = asyncio.get_running_loop().time()
    StreamedAnswer(call, messages).take_turn(now if call.is_any_behind else now + TURN_S)


class StreamedAnswer:
    """The messages of one answer that are not sent yet."""

    __slots__ = ("_call", "_messages", "_time")

    def __init__(self, call: GrpcCall, messages: Iterator[bytes]) -> None:
        self._call = call
        self._messages = messages
        self._time = asyncio.get_running_loop().time

    def take_turn(self, until: float) -> None:
        """Send messages until this time at most, and ask for another turn if some are left."""
        call, time = self._call, self._time
        for message in self._messages:
            if not call.send(message):
                return
            if time() > until or not call.has_room:
                call.ask_for_turn(self)
                return
        call.end()
