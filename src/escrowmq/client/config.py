"""What a user may set about producers and consumers.  Light: it is imported with their names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from escrowmq.model.errors import RequestRefused

GROUP_CHARS_MAX = 120


class Start(StrEnum):
    """Where a group begins in a queue that it has never read."""

    FIRST = "first"
    LAST = "last"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a producer works."""

    #: How long a send, a hold or a decision is tried.
    timeout_s: float = 10.0
    #: How long a transaction may take from its first half message to the database's COMMIT.
    max_duration_s: float = 60.0
    #: Age before the first back-check; None means the broker's policy.
    check_after_s: float | None = None
    #: How often a producer with a ledger deletes its old rows; 0 for never.
    clean_ledger_every_s: float = 600.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("timeout_s", 0.001, 3_600.0),
            ("max_duration_s", 0.001, 86_400.0),
            ("check_after_s", 0.0, 86_400.0),
            ("clean_ledger_every_s", 0.0, 86_400.0),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise RequestRefused(
                    "bad_config", f"must be from {low} to {high}", key=f"producer.{name}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How a consumer works."""

    #: Handlers at a time.
    concurrency: int = 16
    #: Each member gets every message, and nothing is retried.
    broadcast: bool = False
    #: The messages of a queue one after the other; the next only when one is done.
    ordered: bool = False
    #: Where a group begins that has never read a queue.
    start: Start = Start.FIRST
    #: For ``Start.TIME``: milliseconds since 1970.
    start_at_ms: int = 0
    #: Tries after the first before a message becomes a dead letter.
    retries_max: int = 16
    #: A handler that takes longer has failed.
    handler_timeout_s: float = 900.0
    #: How long ``close`` waits for handlers.
    stop_s: float = 30.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("concurrency", 1, 10_000),
            ("retries_max", 0, 1_000),
            ("handler_timeout_s", 0.001, 7 * 86_400.0),
            ("stop_s", 0.0, 86_400.0),
        ):
            if not low <= getattr(self, name) <= high:
                raise RequestRefused(
                    "bad_config", f"must be from {low} to {high}", key=f"consumer.{name}"
                )
        if self.broadcast and self.ordered:
            raise RequestRefused(
                "bad_config", "each member gets all messages: none can wait for others' locks",
                key="consumer.ordered",
            )  # fmt: skip


def check_group(group: str) -> None:
    """Refuse a name that no broker takes."""
    if not 0 < len(group) <= GROUP_CHARS_MAX:
        raise RequestRefused(
            "group_illegal", f"1 to {GROUP_CHARS_MAX} characters", group=group[:256]
        )
