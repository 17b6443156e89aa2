"""One call of a gRPC client, as its handler sees it. The door that makes calls knows no method."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol


class GrpcConnection(Hashable, Protocol):
    """The client's connection, which its calls share."""

    def close_soon(self) -> None:
        """Take no new call, and close after the open ones."""
        ...


class GrpcCall(Protocol):
    """One stream of one connection."""

    path: bytes
    #: On the event loop's clock; the door ends the call when it passes. None means no deadline.
    deadline: float | None
    peer_host: str
    peer_port: int
    local_host: str

    @property
    def is_open(self) -> bool:
        """Whether anything can still be sent."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """Bytes that flow control or the socket holds back."""
        ...

    @property
    def connection(self) -> GrpcConnection:
        """The connection of this stream."""
        ...

    def header(self, name: bytes) -> bytes | None:
        """Return a header of the request, by its name in small letters."""
        ...

    def answer(self, message: bytes) -> None:
        """Send the only message of a unary call, and end the call; ignored once it has ended."""
        ...

    def send(self, message: bytes) -> bool:
        """Send one message of a stream; return False if the stream is closed."""
        ...

    def end(self, status: int = 0, text: str = "") -> None:
        """End the call with a gRPC status; ignored once it has ended."""
        ...


class StreamEvents(Protocol):
    """What happens to a call whose handler streams."""

    def on_message(self, message: bytes) -> None:
        """Handle one message of the client."""
        ...

    def on_half_close(self) -> None:
        """Note that the client sends no more."""
        ...

    def on_closed(self) -> None:
        """Clean up, once, after the call has ended in any way."""
        ...


Unary = Callable[[GrpcCall, bytes], StreamEvents | None]
"""Handles a complete request; answers or streams now or later."""
Stream = Callable[[GrpcCall], StreamEvents]
"""Handles a call on which both sides stream."""


@dataclass(frozen=True)
class GrpcMethods:
    """The methods of a door, by path."""

    unary: Mapping[bytes, Unary]
    streams: Mapping[bytes, Stream]
