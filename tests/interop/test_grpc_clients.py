"""Every scenario of 5.x clients with every official client, on our broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.interop.escrow import Escrow
from tests.interop.grpc_clients.peers import GrpcPeer, every_grpc_peer
from tests.interop.grpc_clients.scenarios import Play, grpc_scenarios_for

#: All tests of a peer run in one worker, because they share one process.
CASES = [
    pytest.param(
        peer.name,
        play,
        id=f"{peer.name}-{play.__name__}",
        marks=pytest.mark.xdist_group(peer.name),
    )
    for peer in every_grpc_peer()
    for play in grpc_scenarios_for(peer)
]


@pytest.fixture(scope="session")
def grpc_peer_named() -> Iterator[Callable[[str], GrpcPeer]]:
    """Return a function that starts each peer once, as one process for all tests."""
    known = {peer.name: peer for peer in every_grpc_peer()}
    started: dict[str, GrpcPeer] = {}
    with ExitStack() as running:

        def get(name: str) -> GrpcPeer:
            if name not in started:
                started[name] = running.enter_context(known[name])
            return started[name]

        yield get


@pytest.mark.parametrize(("peer_name", "play"), CASES)
def test_an_official_client_is_served(
    broker: Escrow, grpc_peer_named: Callable[[str], GrpcPeer], peer_name: str, play: Play
) -> None:
    play(broker, grpc_peer_named(peer_name))
