"""What a scenario is: a promise that any broker of the protocol keeps to any stock client.

A scenario is a function of a broker and a peer; its name is the promise.  It takes names that
nobody else uses, so that scenarios can follow each other on one broker, and waits for events only.
That something does *not* arrive is shown by what comes after it on the same queue.
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
#: What brokers and tools take when nobody says otherwise.
CLUSTER = "DefaultCluster"

#: The first levels are short, so that a delayed or refused message comes soon.
DELAY_LEVELS = "1s 1s 1s 1s 1s 2s"
#: Checks come soon; after as many as RocketMQ sends unless told otherwise they are given up.
CHECK_AFTER_MS = 1_000
CHECK_INTERVAL_MS = 300
CHECKS_MAX = 15


class Broker(Protocol):
    """A running broker, ours or another, with the settings above."""

    @property
    def name_server(self) -> str:
        """Where clients ask for routes: host and port."""
        ...

    @property
    def broker_address(self) -> str:
        """Where messages go, and what admins ask: host and port."""
        ...

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Returns when clients that ask are told of it."""
        ...


Play = Callable[[Broker, Peer], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A promise, and what a peer must be able to do to hear it."""

    name: str
    needs: frozenset[Ability]
    play: Play


SCENARIOS: list[Scenario] = []


def scenario(*needs: Ability) -> Callable[[Play], Play]:
    """Enter a function into the list."""

    def enter(play: Play) -> Play:
        SCENARIOS.append(Scenario(name=play.__name__, needs=frozenset(needs), play=play))
        return play

    return enter


def scenarios_for(peer: Peer) -> list[Scenario]:
    """Those that the peer has the abilities for."""
    return [one for one in SCENARIOS if one.needs <= peer.abilities]


def fresh(what: str) -> str:
    """A name that nobody else uses."""
    return f"{what}-{secrets.token_hex(4)}"


def eventually(holds: Callable[[], bool], what: str, *, timeout_s: float = WAIT_TIMEOUT_S) -> None:
    """For what nobody pushes an event about: an index, an admin's view."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise WaitedInVain(what, timeout_s, [])
        threading.Event().wait(POLL_S)


def same(found: Iterable[object], expected: Iterable[object]) -> None:
    """The same things the same number of times, in whatever order."""
    ours, theirs = sorted(map(str, found)), sorted(map(str, expected))
    assert ours == theirs, f"{ours} is not {theirs}"
