"""Settings that limit how many names a broker keeps."""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.model.bounds import check_bounds

DAY_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """Section ``[limits]``. The broker warns when 80 % of a limit is in use."""

    #: Topics, including retry and dead-letter topics.
    topics_max: int = 20_000
    #: Consumer groups.
    groups_max: int = 20_000
    #: Values that tools store in the broker.
    settings_max: int = 10_000
    #: Consumer offsets: one for each group and queue.
    offsets_max: int = 1_000_000
    #: Producer groups, each counted once per combination of ledger, time allowed and user.
    origins_max: int = 100_000
    #: Users of access control.
    users_max: int = 10_000
    #: A name expires when it has not been used for this long: a producer group, a consumer group
    #: with its offsets, an empty topic that was created by use, a query of the Spark sink.
    unused_expire_ms: int = 30 * DAY_MS

    def __post_init__(self) -> None:
        check_bounds("limits", self, _BOUNDS)


_BOUNDS = (
    ("topics_max", 0, 1_000_000),
    ("groups_max", 0, 1_000_000),
    ("settings_max", 0, 100_000),
    ("offsets_max", 0, 10_000_000),
    ("origins_max", 0, 1_000_000),
    ("users_max", 1, 10_000),
    ("unused_expire_ms", 1, 10 * 365 * DAY_MS),
)
