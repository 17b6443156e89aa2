"""The schedule of kills: drawn once from a seed, and the same for every run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from random import Random
from typing import NamedTuple

import msgspec

BROKER_KILLS_MAX = 4
"""The order service waits while a killed broker starts, so more kills would only add waits."""

DELAY_MS_MAX = 25
"""The longest delay of a random moment after the order that it is counted from."""


class Moment(StrEnum):
    """When the victim dies."""

    #: The conductor kills it, whatever it is doing then.
    RANDOM = "at a random moment"
    #: It kills itself, with the order inserted but not committed.
    BEFORE_COMMIT = "before an order's COMMIT"
    #: It kills itself, with the order committed and the broker not told.
    AFTER_COMMIT = "after an order's COMMIT"


class Victim(StrEnum):
    """The process that is killed."""

    SERVICE = "order service"
    BROKER = "broker"


class PlannedKill(NamedTuple):
    """One SIGKILL."""

    #: For a random moment, the number of paid orders at which it begins; else the order itself.
    at_order: int
    victim: Victim
    moment: Moment
    delay_ms: int


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """A SIGKILL that was sent."""

    at_s: float
    victim: str
    moment: str


#: Kinds of faults, used in turn and then shuffled. The first kind always loses a plain message, and
#: the others do not or only by chance, so a run with a single fault uses the first kind.
_TURNS = (
    (Victim.SERVICE, Moment.AFTER_COMMIT),
    (Victim.BROKER, Moment.RANDOM),
    (Victim.SERVICE, Moment.RANDOM),
    (Victim.SERVICE, Moment.BEFORE_COMMIT),
)


def draw(*, orders: int, kills: int, seed: int) -> tuple[PlannedKill, ...]:
    """Draw ``kills`` faults: split the orders into that many parts, and place one in each."""
    chance = Random(seed)  # noqa: S311 - only makes runs repeatable
    turns = [_TURNS[number % len(_TURNS)] for number in range(kills)]
    broker_kills = 0
    for number, (victim, _) in enumerate(turns):
        broker_kills += victim is Victim.BROKER
        if victim is Victim.BROKER and broker_kills > BROKER_KILLS_MAX:
            turns[number] = (Victim.SERVICE, Moment.RANDOM)
    chance.shuffle(turns)
    # Leave out the first 5 % and the last 10 % of the orders, when little is under way.
    first, last = max(orders // 20, 1), max(orders - orders // 10, 2)
    # Integers, so no two faults get the same order if there are enough orders.
    edges = [first + (last - first) * number // max(kills, 1) for number in range(kills + 1)]
    return tuple(
        PlannedKill(
            at_order=_drawn(chance, edges[number], edges[number + 1], moment),
            victim=victim,
            moment=moment,
            delay_ms=chance.randint(0, DELAY_MS_MAX) if moment is Moment.RANDOM else 0,
        )
        for number, (victim, moment) in enumerate(turns)
    )


def sends_first(order: int) -> bool:
    """Return whether the plain service sends this order's message before its COMMIT."""
    return order % 2 == 1


def _drawn(chance: Random, start: int, end: int, moment: Moment) -> int:
    """Draw an order; a death before a COMMIT prefers one whose message is sent first."""
    order = chance.randrange(start, max(end, start + 1))
    if moment is not Moment.BEFORE_COMMIT or sends_first(order):
        return order
    if order + 1 < end:
        return order + 1
    return max(order - 1, start)


def self_kills(faults: Sequence[PlannedKill], moment: Moment) -> frozenset[int]:
    """Return the orders at which the service kills itself at this moment."""
    return frozenset(fault.at_order for fault in faults if fault.moment is moment)


def from_outside(faults: Sequence[PlannedKill]) -> list[PlannedKill]:
    """Return the faults that the conductor carries out, in order."""
    return [fault for fault in faults if fault.moment is Moment.RANDOM]
