"""What an operator may set about the broker."""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.model.bounds import check_bounds, check_order


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterConfig:
    """Section ``[writer]``."""

    #: Commands that may wait; beyond this even decisions are slowed.
    inbox_max: int = 8_192
    #: Commands that may wait before new messages are slowed.
    messages_max: int = 4_096
    #: Bytes of new messages that may wait.
    bytes_max: int = 64 * 1024 * 1024
    #: Commands in one batch: what shares a flush.
    batch_max: int = 1_024

    def __post_init__(self) -> None:
        check_bounds("writer", self, _BOUNDS)
        check_order("writer", self, "messages_max", "inbox_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsConfig:
    """Section ``[topics]``."""

    #: Whether a message to a topic that does not exist makes it.
    auto_create: bool = True
    #: Queues of such a topic; a client may ask for fewer.
    queue_count: int = 8
    #: Whether a message that is not of its topic's type is refused.  Stock 4.x clients make
    #: ordinary topics only, so their transactions would be.
    enforce_type: bool = False

    def __post_init__(self) -> None:
        check_bounds("topics", self, (("queue_count", 1, 1_024),))


_BOUNDS = (
    ("inbox_max", 1, 1_000_000),
    ("messages_max", 1, 1_000_000),
    ("bytes_max", 1, 2**40),
    ("batch_max", 1, 100_000),
)
