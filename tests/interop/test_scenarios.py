"""Every scenario with every stock client, on our broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interop.harness import Broker, Peer, Scenario, every_peer, scenarios_for

#: All tests of a peer run in one worker, because they share one process.
CASES = [
    pytest.param(
        peer.name,
        scenario,
        id=f"{peer.name}-{scenario.name}",
        marks=pytest.mark.xdist_group(peer.name),
    )
    for peer in every_peer()
    for scenario in scenarios_for(peer)
]


@pytest.mark.parametrize(("peer_name", "scenario"), CASES)
def test_a_stock_client_is_served(
    broker: Broker, peer_named: Callable[[str], Peer], peer_name: str, scenario: Scenario
) -> None:
    scenario.play(broker, peer_named(peer_name))
