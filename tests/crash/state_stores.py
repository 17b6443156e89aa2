"""State stores under crashes: each must hold exactly what the recovered core holds."""

from __future__ import annotations

from escrowmq.store.states.state_rows import rows_between
from escrowmq.store.store import Store
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.state_store import held_from
from tests.crash.model import Wrong


def judge_states(store: Store) -> None:
    """Raise ``Wrong`` if the state store does not hold every undecided transaction as it is."""
    follower = store.follower
    if follower is None:
        return
    follower.follow_all()
    if follower.state != "follows" or follower.lag_rows:
        raise Wrong(f"the state store is {follower.state}: {follower.problem}")
    rows = rows_between(store, 0, store.table.end)
    wanted = held_from(rows).tolist()
    held = follower.states.snapshot(0, NEVER).tolist()
    if held != wanted:
        raise Wrong(f"the state store holds {held}, not {wanted}")
    low = follower.states.low_water()
    if low > min((row[0] for row in wanted), default=store.table.end):
        raise Wrong(f"the low-water mark {low} passes an undecided half message")
    if follower.disagreed:
        raise Wrong("the state store differed from the log")


def let_go(store: Store) -> None:
    """End the connections that the system ends for a dead process."""
    if store.follower is not None:
        store.follower.give_back()
