"""Programs as data: drawn from a seed, printed when they fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.ledger.borders.hands import Driver

STEPS = (8, 18)
DEEPEST = 3
#: Suspensions at which a task may be cancelled: from its beginning, and after its hold.
EARLY_MAX = 24
LATE_MAX = 9


@dataclass(frozen=True)
class Pay:
    """An order, and the message that tells of it: before its row, after it, or awaited."""

    send: str


@dataclass(frozen=True)
class Savepoint:
    """``end`` is release, raise, or clash: a statement that fails."""

    parts: tuple[Part, ...]
    is_by_hand: bool
    end: str


@dataclass(frozen=True)
class Nest:
    """A second block on the same connection, which must be refused."""

    is_consumers: bool


@dataclass(frozen=True)
class Raise:
    """An error of the user's, here."""


@dataclass(frozen=True)
class CommitByHand:
    """The user commits inside the block, by a call or a statement, which must be refused."""

    is_statement: bool


Part = Pay | Savepoint | Nest | Raise | CommitByHand


@dataclass(frozen=True)
class Block:
    """A transaction block.  ``kind`` is producer, chain or consumer."""

    kind: str
    parts: tuple[Part, ...]
    #: How SQLAlchemy is held.
    grip: str
    is_callers: bool
    #: Which of the visible messages it consumes.
    picks: float
    #: The suspension at which its task is cancelled; 0 for none.
    cancelled_at: int = 0
    #: Whether these are counted from when the half messages are held: COMMIT is next.
    is_cancelled_late: bool = False
    #: Between the half messages and the database's COMMIT: nothing, or restore.
    after_hold: str = ""
    #: Between COMMIT and the broker's decision: nothing, lose, sweep, backup or restore.
    before_decision: str = ""
    #: Which of the backups a restore takes, and how a backup is taken.
    chooses: float = 0.0
    sends_late: bool = False


@dataclass(frozen=True)
class Orphan:
    """Half messages whose sender died before COMMIT."""


@dataclass(frozen=True)
class Sweep:
    """The janitor deletes what is decided."""


@dataclass(frozen=True)
class Settle:
    """An hour passes, and a round of checks."""


@dataclass(frozen=True)
class Read:
    """A reader goes on where it stood."""


@dataclass(frozen=True)
class Restart:
    """The broker goes away and comes back."""


@dataclass(frozen=True)
class Backup:
    """A copy of the directory, or one by our tool."""

    chooses: float


@dataclass(frozen=True)
class Restore:
    """The broker goes on from one of the backups."""

    chooses: float


Step = Block | Orphan | Sweep | Settle | Read | Restart | Backup | Restore


def draw_program(rng: Random, driver: Driver) -> list[Step]:
    """Some steps; those after a backup are the interesting ones."""
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
    """Most blocks commit."""
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
