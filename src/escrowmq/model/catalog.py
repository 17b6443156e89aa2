"""Topics, consumer groups, and settings: the documents of the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec

DOCUMENT_BYTES_MAX = 65_536
NUMBER_MAX = 2**63 - 1

# RocketMQ allows 127 characters in a topic name, and 255 with the prefix %RETRY% or %DLQ%. The
# protocol decides which characters are legal; this pattern only excludes control characters and
# lone surrogates.
Name = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f\ud800-\udfff]+\Z"),
]
#: Bits of a topic's permission. New topics may inherit the settings of a topic with INHERIT.
READ = 4
WRITE = 2
INHERIT = 1
READ_WRITE = READ | WRITE
QueueCount = Annotated[int, msgspec.Meta(ge=0, le=65_536)]


class MessageType(StrEnum):
    """The kind of message that a topic is for."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"
    UNSPECIFIED = "UNSPECIFIED"


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic and its configuration."""

    name: Name
    read_queue_count: QueueCount = 8
    write_queue_count: QueueCount = 8
    #: RocketMQ's bits: 8 priority, 4 read, 2 write, 1 inherit.
    perm: Annotated[int, msgspec.Meta(ge=0, le=15)] = READ_WRITE
    message_type: MessageType = MessageType.NORMAL
    attributes: Mapping[str, object] = {}
    created_at_ms: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)] = 0

    @property
    def queue_count(self) -> int:
        """Number of queues that can be written or read."""
        return max(self.read_queue_count, self.write_queue_count)


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's pause: the consumer group gets no messages until it is resumed."""

    by: Annotated[str, msgspec.Meta(max_length=255)]
    reason: Annotated[str, msgspec.Meta(max_length=255)] = ""
    #: Store time of the pause.
    at_ms: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]


WAIT_MS_MAX = 12 * 3_600_000
"""The longest wait before a retry, as long as the longest invisible time of a 5.x client."""
WAITS_MAX = 64
WaitMs = Annotated[int, msgspec.Meta(ge=0, le=WAIT_MS_MAX)]


class ExponentialBackoff(msgspec.Struct, frozen=True, kw_only=True, tag="exponential"):
    """Each retry waits longer than the one before, by a factor."""

    initial_ms: Annotated[int, msgspec.Meta(ge=1, le=WAIT_MS_MAX)]
    max_ms: Annotated[int, msgspec.Meta(ge=1, le=WAIT_MS_MAX)]
    multiplier: Annotated[int, msgspec.Meta(ge=1, le=1_000)]

    def wait_ms(self, retry: int) -> int:
        """Return how long the retry with this number waits; the first one has number 1."""
        # Higher powers exceed every maximum, unless the factor is 1.
        factor: int = self.multiplier ** min(max(retry, 1) - 1, 32)
        return min(self.max_ms, self.initial_ms * factor)


class CustomizedBackoff(msgspec.Struct, frozen=True, kw_only=True, tag="customized"):
    """Each retry has a wait of its own; those after the last wait like the last."""

    waits_ms: Annotated[tuple[WaitMs, ...], msgspec.Meta(min_length=1, max_length=WAITS_MAX)]

    def wait_ms(self, retry: int) -> int:
        """Return how long the retry with this number waits; the first one has number 1."""
        return self.waits_ms[min(max(retry, 1), len(self.waits_ms)) - 1]


Backoff = ExponentialBackoff | CustomizedBackoff


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group."""

    name: Name
    #: Redeliveries before a message goes to the dead-letter topic.
    retry_max: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 16
    #: Queues of its retry topic. With 0, a message that a consumer gives back is not delivered
    #: again.
    retry_queue_count: QueueCount = 1
    may_consume: bool = True
    may_broadcast: bool = True
    #: Whether the broker notifies members at once when a member joins or leaves.
    is_change_notified: bool = True
    attributes: Mapping[str, object] = {}
    #: Whether pop delivers each queue in order: nothing past a message that is in flight.
    is_ordered: bool = False
    #: Only ``PauseGroup`` changes it; None while the group is served.
    pause: Pause | None = None
    #: How long messages that were received by pop wait for their retries; None means the broker's
    #: delay levels, from the third on.
    backoff: Backoff | None = None


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A value that a tool set while the broker ran; any JSON value."""

    name: Name
    value: object


Document = Topic | Group | Setting
