"""Programs as data: drawn from a seed, printed when they fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.ledger.borders.hands import Driver

STEPS = (8, 18)
DEEPEST = 3
#: The suspensions at which a task may be cancelled, from its start or from its hold.
EARLY_MAX = 24
LATE_MAX = 9


@dataclass(frozen=True)
class Pay:
    """An order and its message, which is sent before the order's row, after it, or awaited."""

    send: str


@dataclass(frozen=True)
class Savepoint:
    """A savepoint. ``end`` is release, raise, or clash: a statement that fails."""

    parts: tuple[Part, ...]
    is_by_hand: bool
    end: str


@dataclass(frozen=True)
class Nest:
    """A second block on the same connection, which must be refused."""

    is_consumers: bool


@dataclass(frozen=True)
class Raise:
    """An error of the user's code."""


@dataclass(frozen=True)
class CommitByHand:
    """The user commits inside the block, by a call or a statement, which must be refused."""

    is_statement: bool


Part = Pay | Savepoint | Nest | Raise | CommitByHand


@dataclass(frozen=True)
class Block:
    """A transaction block. ``kind`` is producer, chain or consumer."""

    kind: str
    parts: tuple[Part, ...]
    #: The SQLAlchemy object that the block gets.
    grip: str
    is_callers: bool
    #: Selects the visible message that it consumes.
    picks: float
    #: The suspension at which its task is cancelled; 0 for none.
    cancelled_at: int = 0
    #: Whether suspensions count from the hold of the half messages, just before COMMIT.
    is_cancelled_late: bool = False
    #: The event between the half messages and the database's COMMIT: none, or restore.
    after_hold: str = ""
    #: The event between COMMIT and the broker's decision: none, lose, sweep, backup or restore.
    before_decision: str = ""
    #: Selects the backup of a restore, or the way to take a backup.
    chooses: float = 0.0
    sends_late: bool = False


@dataclass(frozen=True)
class Orphan:
    """Half messages whose sender died before COMMIT."""


@dataclass(frozen=True)
class Sweep:
    """The janitor deletes the rows of decided transactions."""


@dataclass(frozen=True)
class Settle:
    """An hour passes, and then a round of checks runs."""


@dataclass(frozen=True)
class Read:
    """A reader continues from its position."""


@dataclass(frozen=True)
class Restart:
    """The broker stops and starts again."""


@dataclass(frozen=True)
class Backup:
    """A copy of the directory, or a backup by our tool."""

    chooses: float


@dataclass(frozen=True)
class Restore:
    """The broker continues from one of the backups."""

    chooses: float


Step = Block | Orphan | Sweep | Settle | Read | Restart | Backup | Restore


def draw_program(rng: Random, driver: Driver) -> list[Step]:
    """Draw the steps of a program; the steps after a backup matter most."""
    kinds: dict[str, tuple[int, Callable[[], Step]]] = {
        "block": (60, lambda: draw_block(rng, driver)),
        "orphan": (3, Orphan),
        "sweep": (8, Sweep),
        "settle": (6, Settle),
        "read": (7, Read),
        "restart": (2, Restart),
        "backup": (7, lambda: Backup(rng.random())),
        "restore": (9, lambda: Restore(rng.random())),
    }
    weights = [weight for weight, _ in kinds.values()]
    drawn = rng.choices(list(kinds), weights, k=rng.randint(*STEPS))
    return [kinds[kind][1]() for kind in drawn]


def draw_block(rng: Random, driver: Driver) -> Block:
    """Draw a block; most blocks commit."""
    parts = draw_parts(rng, driver, 0)
    fault = rng.choices(("", "raise", "commit", "nest"), (80, 8, 4, 8))[0]
    if fault:
        faults: dict[str, Part] = {
            "raise": Raise(),
            "commit": CommitByHand(rng.random() < 0.5),
            "nest": Nest(rng.random() < 0.4),
        }
        at = rng.randint(0, len(parts))
        parts = (*parts[:at], faults[fault], *parts[at:])
    is_cancelled = driver.is_async and rng.random() < 0.2
    is_late = rng.random() < 0.5
    return Block(
        kind=rng.choices(("producer", "chain", "consumer"), (60, 30, 10))[0],
        parts=parts,
        grip=rng.choice(("session", "connection")),
        is_callers=rng.random() < 0.3,
        picks=rng.random(),
        cancelled_at=rng.randint(1, LATE_MAX if is_late else EARLY_MAX) if is_cancelled else 0,
        is_cancelled_late=is_cancelled and is_late,
        after_hold="restore" if rng.random() < 0.02 else "",
        before_decision=rng.choices(("", "lose", "sweep", "backup", "restore"), (78, 10, 3, 7, 2))[
            0
        ],
        chooses=rng.random(),
        sends_late=rng.random() < 0.05,
    )


def draw_parts(rng: Random, driver: Driver, depth: int) -> tuple[Part, ...]:
    parts: list[Part] = []
    for _ in range(rng.randint(1, 3)):
        if depth < DEEPEST and rng.random() < 0.45:
            parts.append(
                Savepoint(
                    draw_parts(rng, driver, depth + 1),
                    is_by_hand=rng.random() < 0.5,
                    end=rng.choices(("release", "raise", "clash"), (40, 45, 15))[0],
                )
            )
        else:
            ways = ("first", "last", "awaited") if driver.is_async else ("first", "last")
            parts.append(Pay(rng.choice(ways)))
    return tuple(parts)
