"""What a broker is told to keep: topics, consumer groups, and values that tools set."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec

DOCUMENT_BYTES_MAX = 65_536
NUMBER_MAX = 2**63 - 1

# RocketMQ allows 127 characters in a topic's name and 255 where it puts %RETRY% or %DLQ% before it;
# which characters is the protocol's business, as long as people can read them.
Name = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f\ud800-\udfff]+\Z"),
]
QueueCount = Annotated[int, msgspec.Meta(ge=0, le=65_536)]


class MessageType(StrEnum):
    """What kind of message a topic is for."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"
    UNSPECIFIED = "UNSPECIFIED"


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as its owner set it up."""

    name: Name
    read_queue_count: QueueCount = 8
    write_queue_count: QueueCount = 8
    #: RocketMQ's bits: 8 priority, 4 read, 2 write, 1 inherit.
    perm: Annotated[int, msgspec.Meta(ge=0, le=15)] = 6
    message_type: MessageType = MessageType.NORMAL
    attributes: Mapping[str, object] = {}
    created_at_ms: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)] = 0

    @property
    def queue_count(self) -> int:
        """Queues that can be written or read."""
        return max(self.read_queue_count, self.write_queue_count)


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's order that a consumer group gets no messages until it is resumed."""

    by: Annotated[str, msgspec.Meta(max_length=255)]
    reason: Annotated[str, msgspec.Meta(max_length=255)] = ""
    #: In store time.
    at_ms: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group."""

    name: Name
    #: Deliveries after the first one, before a message goes to the dead letters.
    retry_max: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 16
    #: Without one, what a consumer gives back is not delivered again.
    retry_queue_count: QueueCount = 1
    may_consume: bool = True
    may_broadcast: bool = True
    #: Members are told at once when one comes or goes.
    is_change_notified: bool = True
    attributes: Mapping[str, object] = {}
    #: Only ``PauseGroup`` changes it; None while the group is served.
    pause: Pause | None = None


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A value that was set while the broker ran; anything that JSON can say."""

    name: Name
    value: object


Document = Topic | Group | Setting
