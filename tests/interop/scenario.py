"""A scenario: a promise that any broker of the protocol keeps to any stock client.

A scenario is a function of a broker and a peer; its name is the promise. It uses unique names, so
that scenarios can follow each other on one broker, and it waits only for events. A later message on
the same queue proves that something did *not* arrive.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from tests.interop.errors import WaitedInVain
from tests.interop.lines import WAIT_TIMEOUT_S
from tests.interop.peer import Ability, Peer

POLL_S = 0.05
#: The default of brokers and tools.
CLUSTER = "DefaultCluster"

#: The first levels are short, so that a delayed or refused message comes soon.
DELAY_LEVELS = "1s 1s 1s 1s 1s 2s"
#: Back-checks come soon; their limit is RocketMQ's default.
CHECK_AFTER_MS = 1_000
CHECK_INTERVAL_MS = 300
CHECKS_MAX = 15


class Broker(Protocol):
    """A running broker, ours or another, with the settings above."""

    @property
    def name_server(self) -> str:
        """The host and port where clients ask for routes."""
        ...

    @property
    def broker_address(self) -> str:
        """The host and port for messages and admin requests."""
        ...

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create a topic; return when clients that ask are told about it."""
        ...


Play = Callable[[Broker, Peer], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A promise, and the abilities that a peer needs for it."""

    name: str
    needs: frozenset[Ability]
    play: Play


SCENARIOS: list[Scenario] = []


def scenario(*needs: Ability) -> Callable[[Play], Play]:
    """Register a function as a scenario."""

    def enter(play: Play) -> Play:
        SCENARIOS.append(Scenario(name=play.__name__, needs=frozenset(needs), play=play))
        return play

    return enter


def scenarios_for(peer: Peer) -> list[Scenario]:
    """Return the scenarios for which the peer has the abilities."""
    return [one for one in SCENARIOS if one.needs <= peer.abilities]


def fresh(what: str) -> str:
    """Return a unique name."""
    return f"{what}-{secrets.token_hex(4)}"


def eventually(holds: Callable[[], bool], what: str, *, timeout_s: float = WAIT_TIMEOUT_S) -> None:
    """Poll for a state that causes no event, such as an index or an admin's view."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise WaitedInVain(what, timeout_s, [])
        threading.Event().wait(POLL_S)


def same(found: Iterable[object], expected: Iterable[object]) -> None:
    """Assert that both have the same items equally often, in any order."""
    ours, theirs = sorted(map(str, found)), sorted(map(str, expected))
    assert ours == theirs, f"{ours} is not {theirs}"
