"""Headers of consumers' requests: pulls, offsets, and messages that they send back."""

from __future__ import annotations

from msgspec import field

from escrowmq.protocol.message.limits import Expression, Name
from escrowmq.protocol.remoting.headers import Header, Int32, Int64

#: The only type of subscription expression that the broker can filter by, and the default.
EXPRESSION_TAG = "TAG"

_COMMITS_OFFSET = 0x1
_MAY_WAIT = 0x2
_HAS_SUBSCRIPTION = 0x4


class ConsumerGroupHeader(Header, frozen=True, kw_only=True):
    """Requests about a consumer group.

    GET_CONSUMER_LIST_BY_GROUP, NOTIFY_CONSUMER_IDS_CHANGED and GET_CONSUMER_CONNECTION_LIST have no
    other field.
    """

    consumer_group: Name


class ConsumedQueueHeader(ConsumerGroupHeader, frozen=True, kw_only=True):
    """Requests of a consumer group about one queue."""

    topic: Name
    queue_id: Int32


class PullHeader(ConsumedQueueHeader, frozen=True, kw_only=True):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    queue_offset: Int64
    messages_max: Int32 = field(name="maxMsgNums")
    sys_flag: Int32
    commit_offset: Int64
    wait_ms: Int64 = field(name="suspendTimeoutMillis")
    subscription: Expression = ""
    subscription_version: Int64 = field(name="subVersion")
    expression_type: Name = EXPRESSION_TAG
    bytes_max: Int32 | None = field(name="maxMsgBytes", default=None)

    @property
    def commits_offset(self) -> bool:
        """Whether the broker should store ``commit_offset``."""
        return self.sys_flag & _COMMITS_OFFSET != 0

    @property
    def may_wait(self) -> bool:
        """Whether the broker may hold the answer for up to ``wait_ms`` until there is a message."""
        return self.sys_flag & _MAY_WAIT != 0

    @property
    def has_subscription(self) -> bool:
        """Whether ``subscription`` replaces the subscription from the group's heartbeats."""
        return self.sys_flag & _HAS_SUBSCRIPTION != 0


class PullResponseHeader(Header, frozen=True, kw_only=True):
    """The next offset to pull, and the queue's offsets. The messages are in the body."""

    suggested_broker_id: Int64 = field(name="suggestWhichBrokerId", default=0)
    next_offset: Int64 = field(name="nextBeginOffset")
    min_offset: Int64
    max_offset: Int64


class QueryOffsetHeader(ConsumedQueueHeader, frozen=True, kw_only=True):
    """QUERY_CONSUMER_OFFSET."""

    zero_if_none: bool = field(name="setZeroIfNotFound", default=True)


class UpdateOffsetHeader(ConsumedQueueHeader, frozen=True, kw_only=True):
    """UPDATE_CONSUMER_OFFSET."""

    commit_offset: Int64


class _QueueHeader(Header, frozen=True, kw_only=True):
    """Requests about one queue."""

    topic: Name
    queue_id: Int32


class QueueHeader(_QueueHeader, frozen=True, kw_only=True):
    """GET_MAX_OFFSET, GET_MIN_OFFSET and GET_EARLIEST_MSG_STORETIME."""

    #: Count only messages that consumers can see.
    is_committed: bool = field(name="committed", default=True)


class SearchOffsetHeader(_QueueHeader, frozen=True, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP."""

    stored_at_ms: Int64 = field(name="timestamp")
    boundary: Name = field(name="boundaryType", default="lower")

    @property
    def is_upper(self) -> bool:
        """Whether to find the last message with this time instead of the first."""
        return self.boundary.lower() == "upper"


class OffsetResponseHeader(Header, frozen=True, kw_only=True):
    """The answer to the requests above that ask for an offset."""

    offset: Int64


class StoreTimeResponseHeader(Header, frozen=True, kw_only=True):
    """The answer to GET_EARLIEST_MSG_STORETIME."""

    stored_at_ms: Int64 = field(name="timestamp")


class SendBackHeader(Header, frozen=True, kw_only=True):
    """CONSUMER_SEND_MSG_BACK: asks the broker to redeliver a message that could not be consumed."""

    log_offset: Int64 = field(name="offset")
    consumer_group: Name = field(name="group")
    #: 0 lets the broker choose; a negative number gives up the message.
    delay_level: Int32
    origin_message_id: Name = field(name="originMsgId", default="")
    origin_topic: Name = ""
    is_unit_mode: bool = field(name="unitMode", default=False)
    max_reconsume_times: Int32 | None = None


class UnregisterHeader(Header, frozen=True, kw_only=True):
    """UNREGISTER_CLIENT: a client leaves a producer group, a consumer group, or one of each."""

    client_id: Name = field(name="clientID")
    producer_group: Name = ""
    consumer_group: Name = ""


class HeartbeatResponseHeader(Header, frozen=True, kw_only=True):
    """The answer to HEART_BEAT."""

    #: The broker accepts heartbeats without subscriptions.
    is_v2_supported: bool = field(name="IS_SUPPORT_HEART_BEAT_V2", default=True)
    #: False only if the fingerprint shows that no subscription changed.
    is_subscription_changed: bool = field(name="IS_SUB_CHANGE", default=True)
