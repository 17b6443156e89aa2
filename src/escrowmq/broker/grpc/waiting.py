"""Receives that wait in a long poll, by client, so that they end when their client leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from escrowmq.broker.grpc.requests import GrpcRequest
    from escrowmq.broker.pop.service import WaitingPop
    from escrowmq.broker.state.long_polls import LongPolls


class WaitingReceives:
    """Waiting receives. Use it from one event loop only."""

    def __init__(self, polls: LongPolls[WaitingPop]) -> None:
        self._polls = polls
        #: By client id.
        self._requests: dict[str, dict[GrpcRequest, None]] = {}

    def add(self, request: GrpcRequest) -> None:
        """Note that a request waits."""
        self._requests.setdefault(request.client_id, {})[request] = None

    def drop(self, request: GrpcRequest) -> None:
        """Note that a request waits no longer."""
        waiting = self._requests.get(request.client_id)
        if waiting is not None:
            waiting.pop(request, None)
            if not waiting:
                del self._requests[request.client_id]

    def end(self, client_id: str) -> None:
        """Answer the requests of a client that has left, so that others get what comes next."""
        for request in list(self._requests.get(client_id, ())):
            self._polls.end_of(request)
