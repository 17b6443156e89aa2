"""JSON bodies about clients: heartbeats, and the lists of connected clients for tools.

A heartbeat registers a client with its groups. The broker forgets a client after two minutes
without a heartbeat.
"""

from __future__ import annotations

from msgspec import field

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.limits import Expression, Name, Searched
from escrowmq.protocol.remoting.bodies import JsonBody
from escrowmq.protocol.remoting.consumer_headers import EXPRESSION_TAG
from escrowmq.protocol.remoting.headers import Int32, Int64

MODEL_CLUSTERING = "CLUSTERING"
MODEL_BROADCASTING = "BROADCASTING"
CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
CONSUME_FROM_LAST = "CONSUME_FROM_LAST_OFFSET"


class SubscriptionBody(JsonBody, frozen=True, kw_only=True):
    """A consumer group's subscription to one topic. A newer version replaces an older one."""

    topic: Name
    expression: Expression = field(name="subString", default="*")
    expression_type: Name = EXPRESSION_TAG
    version: Int64 = field(name="subVersion", default=0)
    tags: tuple[Searched, ...] = field(name="tagsSet", default=())
    tags_codes: tuple[Int32, ...] = field(name="codeSet", default=())
    is_class_filter: bool = field(name="classFilterMode", default=False)


class SubscriptionOfGroup(JsonBody, frozen=True, kw_only=True):
    """The answer to QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str
    topic: str
    subscription: SubscriptionBody | None = field(name="subscriptionData")


class ProducerMembership(JsonBody, frozen=True, kw_only=True):
    """A client's producer in a group."""

    group: Name = field(name="groupName")


#: In the order of Java's constants: the C++ client sends a constant's position, not its name.
CONSUME_TYPES = ("CONSUME_ACTIVELY", CONSUME_PASSIVELY, "CONSUME_POP")
_MODELS = (MODEL_BROADCASTING, MODEL_CLUSTERING)
_FROM_WHERE = (
    CONSUME_FROM_LAST,
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


class ConsumerMembership(JsonBody, frozen=True, kw_only=True):
    """A client's consumer in a group."""

    group: Name = field(name="groupName")
    said_type: Name | int = field(name="consumeType", default=CONSUME_PASSIVELY)
    said_model: Name | int = field(name="messageModel", default=MODEL_CLUSTERING)
    said_from: Name | int = field(name="consumeFromWhere", default=CONSUME_FROM_LAST)
    subscriptions: tuple[SubscriptionBody, ...] = field(name="subscriptionDataSet", default=())
    is_unit_mode: bool = field(name="unitMode", default=False)

    @property
    def consume_type(self) -> str:
        """Whether the consumer pulls, receives pushes, or pops."""
        return _constant(self.said_type, CONSUME_TYPES)

    @property
    def message_model(self) -> str:
        """Whether the group's members share the messages, or each member gets all of them."""
        return _constant(self.said_model, _MODELS)

    @property
    def consume_from(self) -> str:
        """Where a group without stored offsets starts."""
        return _constant(self.said_from, _FROM_WHERE)


def _constant(said: str | int, constants: tuple[str, ...]) -> str:
    if isinstance(said, str):
        return said
    if not 0 <= said < len(constants):
        raise ProtocolViolation("body_malformed", "no such constant", place=said)
    return constants[said]


class Heartbeat(JsonBody, frozen=True, kw_only=True):
    """HEART_BEAT."""

    client_id: Name = field(name="clientID")
    producers: tuple[ProducerMembership, ...] = field(name="producerDataSet", default=())
    consumers: tuple[ConsumerMembership, ...] = field(name="consumerDataSet", default=())
    #: Two heartbeats with equal subscriptions have equal fingerprints; 0 if unused.
    fingerprint: Int32 = field(name="heartbeatFingerprint", default=0)
    #: The heartbeat omits the subscriptions, and the fingerprint stands for them.
    is_without_subscriptions: bool = field(name="withoutSub", default=False)


class CheckClientRequest(JsonBody, frozen=True, kw_only=True):
    """CHECK_CLIENT_CONFIG: asks whether the broker can parse a subscription."""

    client_id: Name
    group: Name
    subscription: SubscriptionBody = field(name="subscriptionData")


class ConnectedClient(JsonBody, frozen=True, kw_only=True):
    """A connected client."""

    client_id: str
    address: str = field(name="clientAddr")
    #: One of ``codes.LANGUAGES``; tools show any other value as null.
    language: str
    version: Int32


class ProducerConnections(JsonBody, frozen=True, kw_only=True):
    """The answer to GET_PRODUCER_CONNECTION_LIST."""

    connections: tuple[ConnectedClient, ...] = field(name="connectionSet")


class ConsumerConnections(ProducerConnections, frozen=True, kw_only=True):
    """The answer to GET_CONSUMER_CONNECTION_LIST."""

    subscriptions: dict[str, SubscriptionBody] = field(name="subscriptionTable")
    consume_type: str
    message_model: str
    consume_from: str = field(name="consumeFromWhere")
