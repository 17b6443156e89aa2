"""What consumers send: pulls, offsets, messages that they give back."""

from __future__ import annotations

from msgspec import field

from escrowmq.protocol.headers import Header, Int32, Int64
from escrowmq.protocol.limits import Expression, Name

#: The only kind of subscription expression that is filtered here; none given means this one.
EXPRESSION_TAG = "TAG"

_COMMITS_OFFSET = 0x1
_MAY_WAIT = 0x2
_HAS_SUBSCRIPTION = 0x4
_IS_LITE = 0x10


class PullHeader(Header, frozen=True, kw_only=True):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    consumer_group: Name
    topic: Name
    queue_id: Int32
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
        """``commit_offset`` is to be stored on the way."""
        return self.sys_flag & _COMMITS_OFFSET != 0

    @property
    def may_wait(self) -> bool:
        """The answer may wait for a message, up to ``wait_ms``."""
        return self.sys_flag & _MAY_WAIT != 0

    @property
    def has_subscription(self) -> bool:
        """``subscription`` counts, and not the one of the group's heartbeats."""
        return self.sys_flag & _HAS_SUBSCRIPTION != 0

    @property
    def is_lite(self) -> bool:
        """Sent by a consumer that assigns its queues itself."""
        return self.sys_flag & _IS_LITE != 0


class PullResponseHeader(Header, frozen=True, kw_only=True):
    """Where to go on, and which offsets there are; the messages are the body."""

    suggested_broker_id: Int64 = field(name="suggestWhichBrokerId", default=0)
    next_offset: Int64 = field(name="nextBeginOffset")
    min_offset: Int64
    max_offset: Int64


class QueryOffsetHeader(Header, frozen=True, kw_only=True):
    """QUERY_CONSUMER_OFFSET."""

    consumer_group: Name
    topic: Name
    queue_id: Int32
    zero_if_none: bool = field(name="setZeroIfNotFound", default=True)


class UpdateOffsetHeader(Header, frozen=True, kw_only=True):
    """UPDATE_CONSUMER_OFFSET."""

    consumer_group: Name
    topic: Name
    queue_id: Int32
    commit_offset: Int64


class QueueHeader(Header, frozen=True, kw_only=True):
    """GET_MAX_OFFSET, GET_MIN_OFFSET and GET_EARLIEST_MSG_STORETIME."""

    topic: Name
    queue_id: Int32
    #: Only what consumers can see already.
    is_committed: bool = field(name="committed", default=True)


class SearchOffsetHeader(Header, frozen=True, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP."""

    topic: Name
    queue_id: Int32
    stored_at_ms: Int64 = field(name="timestamp")
    boundary: Name = field(name="boundaryType", default="lower")

    @property
    def is_upper(self) -> bool:
        """The last of the messages with this time is wanted, not the first."""
        return self.boundary.lower() == "upper"


class OffsetResponseHeader(Header, frozen=True, kw_only=True):
    """The answer to all of the requests above that ask for an offset."""

    offset: Int64


class StoreTimeResponseHeader(Header, frozen=True, kw_only=True):
    """The answer to GET_EARLIEST_MSG_STORETIME."""

    stored_at_ms: Int64 = field(name="timestamp")


class SendBackHeader(Header, frozen=True, kw_only=True):
    """CONSUMER_SEND_MSG_BACK: a message that could not be consumed is to come again later."""

    log_offset: Int64 = field(name="offset")
    consumer_group: Name = field(name="group")
    #: 0 leaves it to the broker, below 0 gives up.
    delay_level: Int32
    origin_message_id: Name = field(name="originMsgId", default="")
    origin_topic: Name = ""
    is_unit_mode: bool = field(name="unitMode", default=False)
    max_reconsume_times: Int32 | None = None


class ConsumerGroupHeader(Header, frozen=True, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP, NOTIFY_CONSUMER_IDS_CHANGED, GET_CONSUMER_CONNECTION_LIST."""

    consumer_group: Name


class UnregisterHeader(Header, frozen=True, kw_only=True):
    """UNREGISTER_CLIENT: one group of a client ends, or a group of each kind."""

    client_id: Name = field(name="clientID")
    producer_group: Name = ""
    consumer_group: Name = ""


class HeartbeatResponseHeader(Header, frozen=True, kw_only=True):
    """The answer to HEART_BEAT."""

    #: Heartbeats without subscriptions are understood.
    is_v2_supported: bool = field(name="IS_SUPPORT_HEART_BEAT_V2", default=True)
    #: False only if a fingerprint showed that nothing is new.
    is_subscription_changed: bool = field(name="IS_SUB_CHANGE", default=True)
