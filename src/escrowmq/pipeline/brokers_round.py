"""What the summaries of all rounds begin with."""

from __future__ import annotations

import msgspec


class BrokersRound(msgspec.Struct, frozen=True, kw_only=True):
    """When a round ran, and which brokers it read."""

    #: On the driver's clock.
    started_at_ms: int
    took_ms: int
    #: The number of brokers that answered, and the addresses of those that were not read
    #: completely.
    brokers: int
    away: tuple[str, ...] = ()
