"""Consumer lag as the broker reports it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from escrowmq.client.own_calls import OwnCalls


class Lag(NamedTuple):
    """Messages of a topic that a consumer group has not acknowledged."""

    messages: int = 0
    group: str = ""
    topic: str = ""


def largest_lag(calls: OwnCalls) -> Lag:
    """Return the largest lag of any group in any topic."""
    from escrowmq.protocol.own import OwnCode

    lags: Counter[tuple[str, str]] = Counter()
    for row in calls.rows(OwnCode.LIST_OFFSETS):
        lags[row.group, row.topic] += row.lag
    for (group, topic), messages in lags.most_common(1):
        return Lag(messages, group, topic)
    return Lag()
