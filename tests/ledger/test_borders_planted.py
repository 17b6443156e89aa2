"""Planted defects that the hunt must catch: a hunt that cannot find anything proves nothing.

Patches of this test plant them, never the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from escrowmq.client.database import open_blocks, savepoint_marks
from escrowmq.client.ledger.chain_block import ChainBlock
from escrowmq.client.ledger.janitor import Confirmed
from escrowmq.client.producer import transaction_steps
from escrowmq.client.producer.janitor_schedule import Janitor
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.model.lineage import Sight
from escrowmq.pipeline.source import forks
from escrowmq.pipeline.source.offsets import QueueKey
from escrowmq.pipeline.source.queues import KnownBrokers
from tests.ledger.borders.hunt import Hunt, quiet
from tests.ledger.borders.model import Wrong
from tests.ledger.borders.programs import (
    LATE_MAX,
    Backup,
    Block,
    Nest,
    Part,
    Pay,
    Read,
    Restore,
    Savepoint,
    Step,
    Sweep,
)

Patch = pytest.MonkeyPatch
SEED = 5
PROGRAMS_MAX = 1_000


def second_blocks(patch: Patch) -> None:
    """A connection forgets that it is in a block."""
    patch.setattr(open_blocks, "is_in_block", lambda _connection: False)


def lasting_messages(patch: Patch) -> None:
    """A rollback to a savepoint takes no message back."""
    patch.setattr(savepoint_marks, "numbers_in", lambda *_: frozenset(range(4_096)))


def one_history(patch: Patch) -> None:
    """A restored broker is mistaken for one that continued."""
    patch.setattr(Sight, "fork", lambda *_: None)


def greedy_janitor(patch: Patch) -> None:
    """The janitor treats undecided transactions as committed."""
    confirm = Janitor._confirm

    async def everything(self: Any, ids: Sequence[str]) -> Confirmed:
        confirmed = await confirm(self, ids)
        return Confirmed(dict.fromkeys(ids, LedgerOutcome.COMMITTED), confirmed.sights)

    patch.setattr(Janitor, "_confirm", everything)


class Never(Exception):
    """An error that the code never raises."""


def certain_cancels(patch: Patch) -> None:
    """An interrupted COMMIT is treated as refused."""
    patch.setattr(transaction_steps, "OutcomeUnknown", Never)


def chains_without_rows(patch: Patch) -> None:
    """A chain's block writes no row into the ledger."""

    def nothing(_self: Any, _now_ms: int) -> Iterator[Any]:
        yield from ()

    patch.setattr(ChainBlock, "_insert_committed", nothing)


def positions_beyond_the_fork(patch: Patch) -> None:
    """A position beyond the fork continues at the end of the new history."""

    def ends_now(found: KnownBrokers, *_: Any) -> dict[QueueKey, int]:
        return {key: span.end for key, span in found.spans.items()}

    patch.setattr(forks, "_ends", ends_now)


def parts_of(steps: Sequence[Step]) -> Iterator[Part]:
    for step in steps:
        if isinstance(step, Block):
            yield from step.parts


def nests(steps: Sequence[Step]) -> bool:
    return any(isinstance(part, Nest) for part in parts_of(steps))


def takes_back(steps: Sequence[Step]) -> bool:
    return any(isinstance(part, Savepoint) for part in parts_of(steps))


def restores(steps: Sequence[Step]) -> bool:
    has_backup = any(isinstance(one, Block) and one.before_decision == "backup" for one in steps)
    return has_backup and {Sweep, Restore} <= set(map(type, steps))


def sweeps(steps: Sequence[Step]) -> bool:
    loses = any(isinstance(one, Block) and one.before_decision == "lose" for one in steps)
    return loses and Sweep in set(map(type, steps))


def chains(steps: Sequence[Step]) -> bool:
    return any(
        isinstance(one, Block) and one.kind == "chain" and one.before_decision == "lose"
        for one in steps
    )


def reads(steps: Sequence[Step]) -> bool:
    """Return whether a reader may be beyond the fork when new messages come."""
    wanted = [Backup, Block, Read, Restore, Block]
    for step in steps:
        if wanted and isinstance(step, wanted[0]):
            del wanted[0]
    return not wanted


PLANTS: dict[str, tuple[Callable[[Patch], None], Callable[[Sequence[Step]], bool]]] = {
    "nesting": (second_blocks, nests),
    "savepoint": (lasting_messages, takes_back),
    "restore": (one_history, restores),
    "sweep": (greedy_janitor, sweeps),
    "chain": (chains_without_rows, chains),
    "archive": (positions_beyond_the_fork, reads),
}
#: These drivers need no server.
QUICK = ("sqlite3", "aiosqlite")


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_defect_is_caught(name: str, monkeypatch: Patch) -> None:
    plant, concerns = PLANTS[name]
    hunt = Hunt(SEED, lambda: pytest.fail("no program here needs a server"))
    drawn = ((number, *hunt.program(number)) for number in range(PROGRAMS_MAX))
    numbers = [number for number, driver, steps in drawn if driver in QUICK and concerns(steps)]
    assert numbers
    plant(monkeypatch)
    with quiet(), pytest.raises(Wrong):
        for number in numbers:
            hunt.run(number)


class Cancels(Hunt):
    """Cancels one block at each of its suspensions after the hold."""

    def program(self, number: int) -> tuple[str, list[Step]]:
        """Return the program; the k-th is cancelled at the k-th suspension."""
        block = Block(
            kind="producer",
            parts=(Pay("last"),),
            grip="connection",
            is_callers=False,
            picks=0.0,
            cancelled_at=number,
            is_cancelled_late=True,
        )
        return "sqlalchemy-aiosqlite", [block]


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_planted_defect_of_cancels_is_caught(monkeypatch: Patch, *, is_planted: bool) -> None:
    if is_planted:
        certain_cancels(monkeypatch)
    hunt, wrong = Cancels(SEED, lambda: pytest.fail("it needs no server")), 0
    with quiet():
        for number in range(1, LATE_MAX + 1):
            try:
                hunt.run(number)
            except Wrong:
                wrong += 1
    assert bool(wrong) is is_planted
