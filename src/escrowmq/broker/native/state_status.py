"""What the status says about the state store, and about comparisons with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from escrowmq.protocol.message.limits import SHOWN_CHARS_MAX

if TYPE_CHECKING:
    from escrowmq.broker.native.comparisons import Comparisons
    from escrowmq.store.store import Store


def status_of_states(store: Store) -> dict[str, Any]:
    """Return the fields of the state store itself."""
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


def status_of_comparison(comparisons: Comparisons) -> dict[str, Any]:
    """Return the fields of the last comparison of half and op records with the state store."""
    last = comparisons.last
    if last is None:
        numbers = ("at_ms", "decided_before", "log_offset", "open", "differences")
        none: dict[str, Any] = {f"compared_{name}": 0 for name in numbers}
        texts = ("outcome", "first_difference", "state_store")
        return none | {f"compared_{name}": "" for name in texts}
    return {
        "compared_at_ms": last.compared_at_ms,
        "compared_outcome": last.outcome,
        "compared_decided_before": last.decided_before,
        "compared_log_offset": last.log_offset,
        "compared_open": last.open_requests,
        "compared_differences": last.differences,
        "compared_first_difference": comparisons.first_difference,
        "compared_state_store": last.state_store,
    }
