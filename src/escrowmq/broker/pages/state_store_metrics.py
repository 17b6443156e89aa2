"""Metrics of the state store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.pages import metric_table as table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.broker.native.status import BrokerStatus
    from escrowmq.broker.pages.exposition import Metric, Sample


def state_store_metrics(told: BrokerStatus) -> dict[Metric, Sequence[Sample]]:
    """Return whether the state store follows the log, its lag, and how often it differed."""
    is_following = int(told.state_store_state == "follows")
    return {
        table.STATES_FOLLOW: [((told.state_store,), is_following)],
        table.STATES_LAG: [((), told.state_store_lag)],
        table.STATES_LOW_WATER: [((), told.state_store_low_water)],
        table.STATES_DISAGREED: [((), told.state_store_disagreed)],
    }
