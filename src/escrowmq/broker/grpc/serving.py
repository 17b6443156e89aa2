"""The port of gRPC clients: bound before the store is open, served after, drained at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.broker.grpc.place import GrpcPlace
from escrowmq.broker.net.grpc_door import GrpcDoor
from escrowmq.broker.net.grpc_limits import GrpcLimits
from escrowmq.broker.net.listening import bound_socket
from escrowmq.protocol.message.ids import format_address

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from escrowmq.broker.config import BrokerConfig
    from escrowmq.broker.net.grpc_call import GrpcMethods
    from escrowmq.broker.net.opening import Openings

HANG_UP_S = 1.0
"""How long clients may take to read their last answers when the broker stops."""


@dataclass(eq=False)
class GrpcServing:
    """Owns the port of gRPC clients."""

    _config: BrokerConfig
    _openings: Openings

    def __post_init__(self) -> None:
        self._bound: socket.socket | None = None
        self._door: GrpcDoor | None = None
        self._place = GrpcPlace(name=self._config.name, host="", port=0)

    @property
    def address(self) -> str:
        """The address that the broker tells clients; empty before the port is bound."""
        return format_address(self._place.host, self._place.port) if self._place.port else ""

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return 0 if self._door is None else len(self._door.connections)

    def bind(self, advertised: str) -> None:
        """Bind the port; clients connect to it at the advertised address."""
        self._bound = bound_socket(self._config.host, self._config.grpc_port)
        port = self._bound.getsockname()[1]
        self._place = GrpcPlace(name=self._config.name, host=advertised, port=port)

    def start(self, serve: Callable[[GrpcPlace], GrpcMethods]) -> None:
        """Accept clients, and let the broker serve them."""
        bound = self._bound
        assert bound is not None
        self._door = GrpcDoor(serve(self._place), GrpcLimits.of(self._config), self._openings)
        self._bound = None
        self._door.start(bound)

    def close_soon(self) -> None:
        """Accept no more clients and no more calls."""
        if self._bound is not None:
            self._bound.close()
        if self._door is not None:
            self._door.close_soon()

    async def close(self) -> None:
        """Close all connections after their last answers."""
        if self._door is not None:
            await self._door.close(HANG_UP_S)
