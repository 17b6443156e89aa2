"""How the broker reaches a client that is online, whatever protocol the client speaks."""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum
from typing import Protocol


class ClientDialect(StrEnum):
    """The form in which a client takes what the broker sends by itself, such as a back-check."""

    #: Frames of remoting, with headers in JSON or in binary form.
    JSON = "json"
    BINARY = "binary"
    #: Commands on the client's telemetry stream.
    GRPC = "grpc"


class Taken(Protocol):
    """Callback that gets whether the socket took a frame."""

    def __call__(self, *, is_taken: bool) -> None:
        """Handle the result."""
        ...


class Caller(Protocol):
    """The user of a client, as far as handlers know it."""

    @property
    def name(self) -> str:
        """The user's name."""
        ...


class ClientLink(Hashable, Protocol):
    """A remoting connection, or a telemetry stream."""

    @property
    def address(self) -> str:
        """The client's address."""
        ...

    @property
    def caller(self) -> Caller | None:
        """The user of the client; None without access control."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether anything can still be sent."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether the client keeps up with reading, so that it can take more."""
        ...

    def send(self, data: bytes) -> None:
        """Queue a frame or command in the client's dialect."""
        ...

    def send_and_tell(self, data: bytes, taken: Taken) -> None:
        """Queue a frame or command, and report whether the socket took it."""
        ...
