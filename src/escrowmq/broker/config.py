"""What an operator may set about the broker."""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.model.bounds import check_bounds, check_order
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.delay_levels import DELAY_LEVELS, DelayLevels
from escrowmq.protocol.limits import TOPIC_CHARS_MAX

OFF = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterConfig:
    """Section ``[writer]``."""

    #: Commands that may wait; beyond this even decisions are slowed.
    inbox_max: int = 8_192
    #: Commands that may wait before new messages are slowed.
    messages_max: int = 4_096
    #: Bytes of new messages that may wait.
    bytes_max: int = 64 * 1024 * 1024
    #: Commands in one batch: what shares a flush.  Where nothing is flushed, 32 at most.
    batch_max: int = 1_024

    def __post_init__(self) -> None:
        check_bounds("writer", self, _BOUNDS)
        check_order("writer", self, "messages_max", "inbox_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Section ``[broker]``."""

    #: The address to listen on.
    host: str = "127.0.0.1"
    #: Where clients ask for routes, and where they send and pull; 0 means any free port.
    name_port: int = 9_876
    port: int = 10_911
    #: Where probes and people look, see the page on watching a broker; 0 means any, -1 means off.
    http_port: int = OFF
    #: The address that clients are told to use; empty means ``host``.
    advertise_host: str = ""
    #: What routes call the broker and its cluster.
    name: str = "broker-a"
    cluster: str = "DefaultCluster"
    #: Connections at a time.
    connections_max: int = 20_000
    #: A connection that was silent for so long is closed.
    idle_ms_max: int = 120_000
    #: A connection whose frame is not whole after so long, or that reads nothing of its answers
    #: for so long, is cut.
    stalled_ms_max: int = 60_000
    #: The largest frame that a peer may send; a larger one closes the connection.
    frame_bytes_max: int = 16 * 1024 * 1024
    #: Bytes of all connections that wait for the rest of a frame or for their turn; beyond, those
    #: are cut that hold most of it for the longest time.
    waiting_bytes_max: int = 256 * 1024 * 1024
    #: Answers that a connection may wait for before it is no longer read from.
    unanswered_max: int = 256
    #: Bytes that a peer may leave unread before it is no longer read from, and before it is cut.
    slow_bytes: int = 1024 * 1024
    peer_unread_bytes_max: int = 64 * 1024 * 1024
    #: Bytes that all peers together may leave unread; beyond, those are cut that leave most of it
    #: for the longest time.
    unread_bytes_max: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        check_bounds("broker", self, _BROKER_BOUNDS)
        check_order("broker", self, "slow_bytes", "peer_unread_bytes_max")
        check_order("broker", self, "peer_unread_bytes_max", "unread_bytes_max")
        for key in ("name", "cluster"):
            chars = len(getattr(self, key))
            if chars > TOPIC_CHARS_MAX:
                # Names of a Spark sink's groups contain it, and have a limit themselves.
                raise RequestRefused(
                    "bad_config",
                    f"must have at most {TOPIC_CHARS_MAX} characters",
                    key=f"broker.{key}",
                    value=chars,
                )


_BROKER_BOUNDS = (
    ("name_port", 0, 65_535),
    ("port", 0, 65_535),
    ("http_port", OFF, 65_535),
    ("connections_max", 1, 1_000_000),
    ("idle_ms_max", 1_000, 24 * 3_600_000),
    ("stalled_ms_max", 100, 24 * 3_600_000),
    ("frame_bytes_max", 1_024, 256 * 1024 * 1024),
    ("waiting_bytes_max", 1_024, 2**40),
    ("unanswered_max", 1, 1_000_000),
    ("slow_bytes", 1, 2**31 - 1),
    ("peer_unread_bytes_max", 1, 2**40),
    ("unread_bytes_max", 1, 2**40),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsConfig:
    """Section ``[topics]``."""

    #: Whether a message to a topic that does not exist makes it.
    auto_create: bool = True
    #: Queues of such a topic; a client may ask for fewer.
    queue_count: int = 8
    #: Whether a consumer group that does not exist is made when a member of it is first seen.
    auto_create_groups: bool = True
    #: Whether a message that is not of its topic's type is refused.  Stock 4.x clients make
    #: ordinary topics only, so their transactions would be.
    enforce_type: bool = False
    #: How long each delay level waits; messages that a consumer gave back start at the third.
    delay_levels: str = DELAY_LEVELS

    def __post_init__(self) -> None:
        check_bounds("topics", self, (("queue_count", 1, 1_024),))
        try:
            DelayLevels.parse(self.delay_levels)
        except ValueError as error:
            raise RequestRefused(
                "bad_config", str(error), key="topics.delay_levels", value=self.delay_levels
            ) from None


_BOUNDS = (
    ("inbox_max", 1, 1_000_000),
    ("messages_max", 1, 1_000_000),
    ("bytes_max", 1, 2**40),
    ("batch_max", 1, 100_000),
)
