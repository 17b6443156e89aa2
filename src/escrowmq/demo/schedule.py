"""Who is killed when: drawn once from a seed, the same for every run.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

BROKER_KILLS_MAX = 4
"""``escrowmq up`` waits longer before each restart in a row: more would be a demo of that."""

DELAY_MS_MAX = 25
"""A random moment is so long after the order that it is counted from, at most."""


class Moment(StrEnum):
    """When the victim dies."""

    #: Whatever it is doing then.
    RANDOM = "at a random moment"
    #: By its own hand, with the order in its database and not committed.
    BEFORE_COMMIT = "before an order's COMMIT"
    #: By its own hand, with the order committed and nobody told.
    AFTER_COMMIT = "after an order's COMMIT"


class Victim(StrEnum):
    """Who dies."""

    SERVICE = "order service"
    BROKER = "broker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One SIGKILL."""

    #: A random moment is counted from when so many orders are paid; the others mean this order.
    at_order: int
    victim: Victim
    moment: Moment
    delay_ms: int = 0


#: They take turns.  The first one alone is enough to lose a plain message.
_TURNS = (
    (Victim.SERVICE, Moment.AFTER_COMMIT),
    (Victim.BROKER, Moment.RANDOM),
    (Victim.SERVICE, Moment.RANDOM),
    (Victim.SERVICE, Moment.BEFORE_COMMIT),
)


def draw(*, orders: int, kills: int, seed: int) -> tuple[Fault, ...]:
    """So many faults, spread over the orders: one at a random place of each part."""
    chance = Random(seed)  # noqa: S311 - a run can be repeated, that is all
    turns = [_TURNS[number % len(_TURNS)] for number in range(kills)]
    broker_kills = 0
    for number, (victim, _) in enumerate(turns):
        broker_kills += victim is Victim.BROKER
        if victim is Victim.BROKER and broker_kills > BROKER_KILLS_MAX:
            turns[number] = (Victim.SERVICE, Moment.RANDOM)
    chance.shuffle(turns)
    # Neither before anything is under way, nor when all is over.
    first, last = max(orders // 20, 1), max(orders - orders // 10, 2)
    # Whole numbers: no two faults at one order, as long as there are enough of these.
    edges = [first + (last - first) * number // max(kills, 1) for number in range(kills + 1)]
    return tuple(
        Fault(
            at_order=chance.randrange(edges[number], max(edges[number + 1], edges[number] + 1)),
            victim=victim,
            moment=moment,
            delay_ms=chance.randint(0, DELAY_MS_MAX) if moment is Moment.RANDOM else 0,
        )
        for number, (victim, moment) in enumerate(turns)
    )


def by_own_hand(faults: Sequence[Fault], moment: Moment) -> frozenset[int]:
    """The orders at which the service ends itself at this moment."""
    return frozenset(fault.at_order for fault in faults if fault.moment is moment)


def from_outside(faults: Sequence[Fault]) -> list[Fault]:
    """Those that somebody else must see to, in their order."""
    return [fault for fault in faults if fault.moment is Moment.RANDOM]
