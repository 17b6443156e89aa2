"""What the status says about the state store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from escrowmq.protocol.message.limits import SHOWN_CHARS_MAX

if TYPE_CHECKING:
    from escrowmq.store.store import Store


def status_of_states(store: Store) -> dict[str, Any]:
    """Return the fields of the status."""
    follower, name = store.follower, store.core.policy.state_store
    if follower is None:
        none = dict.fromkeys(("state_store_lag", "state_store_disagreed"), 0)
        said = {"state_store": name, "state_store_state": "follows", "state_store_error": ""}
        return {**none, **said, "state_store_low_water": -1}
    error = "" if follower.problem is None else str(follower.problem)
    return {
        "state_store": name,
        "state_store_state": follower.state,
        "state_store_lag": follower.lag_rows,
        "state_store_disagreed": follower.disagreed,
        "state_store_low_water": follower.low_water,
        "state_store_error": error[:SHOWN_CHARS_MAX],
    }
