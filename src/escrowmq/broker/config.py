"""Configuration of the broker, its writer and its topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from escrowmq.model.bounds import bad_setting, check_bounds, check_choice, check_order
from escrowmq.protocol.message.delay_levels import DELAY_LEVELS, DelayLevels
from escrowmq.protocol.message.limits import TOPIC_CHARS_MAX

OFF = -1

AccessMode = Literal["off", "on"]
TlsMode = Literal["off", "optional", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterConfig:
    """Section ``[writer]``."""

    #: Commands that may wait; above this the broker refuses even decisions as busy.
    inbox_max: int = 8_192
    #: Commands that may wait before new messages are refused as busy, those of heavy senders first.
    messages_max: int = 4_096
    #: Bytes of new messages that may wait before more are refused as busy.
    bytes_max: int = 64 * 1024 * 1024
    #: Commands in one batch, which share a flush; at most 64 if the broker does not flush.
    batch_max: int = 1_024

    def __post_init__(self) -> None:
        check_bounds("writer", self, _BOUNDS)
        check_order("writer", self, "messages_max", "inbox_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Section ``[broker]``."""

    #: The address to listen on.
    host: str = "127.0.0.1"
    #: Port for route requests, and port for sending and pulling; 0 means any free port.
    name_port: int = 9_876
    port: int = 10_911
    #: Port for probes and browsers, see the page on watching a broker; 0 means any, -1 means off.
    http_port: int = OFF
    #: Port for RocketMQ's 5.x clients, which use gRPC; 0 means any, -1 means off.
    grpc_port: int = 8_081
    #: The address that the broker tells clients to use; empty means ``host``.
    advertise_host: str = ""
    #: Names of the broker and its cluster in routes.
    name: str = "broker-a"
    cluster: str = "DefaultCluster"
    #: Connections that may be open at a time.
    connections_max: int = 20_000
    #: The broker closes a connection that is silent for this long.
    idle_ms_max: int = 120_000
    #: The broker cuts a connection whose frame is incomplete for this long, or whose peer reads
    #: none of its answers for this long.
    stalled_ms_max: int = 60_000
    #: The largest frame that a peer may send; a larger one ends the connection.
    frame_bytes_max: int = 16 * 1024 * 1024
    #: Bytes that may wait on all connections for the rest of a frame or for their turn; above this
    #: the broker cuts the connections that hold the most for the longest time.
    waiting_bytes_max: int = 256 * 1024 * 1024
    #: Unanswered requests of a connection at which the broker stops reading from it.
    unanswered_max: int = 256
    #: Unread bytes at which the broker stops reading from a peer, and at which it cuts the peer.
    slow_bytes: int = 1024 * 1024
    peer_unread_bytes_max: int = 64 * 1024 * 1024
    #: Bytes that all peers together may leave unread; above this the broker cuts the peers that
    #: leave the most unread for the longest time.
    unread_bytes_max: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        check_bounds("broker", self, _BROKER_BOUNDS)
        check_order("broker", self, "slow_bytes", "peer_unread_bytes_max")
        check_order("broker", self, "peer_unread_bytes_max", "unread_bytes_max")
        for key in ("name", "cluster"):
            chars = len(getattr(self, key))
            if chars > TOPIC_CHARS_MAX:
                # A Spark sink's group names contain this name and have a limit themselves.
                raise bad_setting(
                    f"broker.{key}", f"must have at most {TOPIC_CHARS_MAX} characters", chars
                )


_BROKER_BOUNDS = (
    ("name_port", 0, 65_535),
    ("port", 0, 65_535),
    ("http_port", OFF, 65_535),
    ("grpc_port", OFF, 65_535),
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
class TlsConfig:
    """Section ``[tls]``."""

    #: With `optional`, every port takes connections with TLS and without; with `required`, only
    #: those with TLS; with `off`, only those without.
    mode: TlsMode = "optional"
    #: PEM files of the broker's certificate and its key, which are loaded again when they change;
    #: if both are empty, the broker makes a self-signed certificate at its first start and keeps it
    #: in its data directory.
    cert_file: str = ""
    key_file: str = ""
    #: PEM file of the CA that signed the clients' certificates; if empty, clients need none.
    #: Connections without TLS show no certificate, so this needs `required`.
    ca_file: str = ""

    def __post_init__(self) -> None:
        check_choice("tls", self, "mode", get_args(TlsMode))
        for one, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
            if getattr(self, one) and not getattr(self, other):
                raise bad_setting(f"tls.{other}", f"belongs to tls.{one}", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """Section ``[access]``."""

    #: `on` checks each request against users and policies; `off` lets every client do everything.
    mode: AccessMode = "off"
    #: File with the key that seals the secrets of users, 64 hexadecimal digits; only its owner may
    #: read it. If empty, the variable `ESCROWMQ_ACCESS_KEY` has the key.
    key_file: str = ""
    #: Whether clients on other machines must use TLS: who reads their signatures can send them
    #: again. `--insecure` turns it off.
    requires_tls: bool = True

    def __post_init__(self) -> None:
        check_choice("access", self, "mode", get_args(AccessMode))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsConfig:
    """Section ``[topics]``."""

    #: Whether a message to a topic that does not exist creates the topic.
    auto_create: bool = True
    #: Queues of such a topic; the client may ask for fewer.
    queue_count: int = 8
    #: Whether the first member of a consumer group that does not exist creates the group.
    auto_create_groups: bool = True
    #: Whether to refuse a remoting client's message that does not have its topic's type. The first
    #: message then gives a topic that it creates the type.
    enforce_type: bool = False
    #: The delay of each level; messages that a consumer gives back start at the third level.
    delay_levels: str = DELAY_LEVELS

    def __post_init__(self) -> None:
        check_bounds("topics", self, (("queue_count", 1, 1_024),))
        try:
            DelayLevels.parse(self.delay_levels)
        except ValueError as error:
            raise bad_setting("topics.delay_levels", str(error), self.delay_levels) from None


_BOUNDS = (
    ("inbox_max", 1, 1_000_000),
    ("messages_max", 1, 1_000_000),
    ("bytes_max", 1, 2**40),
    ("batch_max", 1, 100_000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Name, cluster and addresses of one broker."""

    name: str
    cluster: str
    #: The address that the broker tells clients.
    address: str
    #: The same address in the form that stored messages use.
    store_host: bytes
