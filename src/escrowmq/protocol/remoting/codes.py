"""Request and response codes of RocketMQ's remoting protocol.

Names and numbers are RocketMQ's, because its clients and tools send them. The broker answers a
request code that is not listed here with ``REQUEST_CODE_NOT_SUPPORTED``.
"""

from __future__ import annotations

from enum import IntEnum


class RequestCode(IntEnum):
    """Requests from stock clients and tools to the broker, and from the broker to clients.

    The broker refuses some of them; it has their names for the metrics.
    """

    # Producers.
    SEND_MESSAGE = 10
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    END_TRANSACTION = 37
    RECALL_MESSAGE = 370

    # Consumers.
    PULL_MESSAGE = 11
    LITE_PULL_MESSAGE = 361
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    CONSUMER_SEND_MSG_BACK = 36
    GET_CONSUMER_LIST_BY_GROUP = 38
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    POP_MESSAGE = 200_050
    ACK_MESSAGE = 200_051
    CHANGE_MESSAGE_INVISIBLETIME = 200_053
    NOTIFICATION = 200_054
    POLLING_INFO = 200_055
    BATCH_ACK_MESSAGE = 200_151

    # Every client.
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CHECK_CLIENT_CONFIG = 46
    GET_ROUTEINFO_BY_TOPIC = 105

    # From the broker to clients.
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_RUNNING_INFO = 307
    CONSUME_MESSAGE_DIRECTLY = 309

    # Tools: messages.
    QUERY_MESSAGE = 12
    VIEW_MESSAGE_BY_ID = 33
    RESUME_CHECK_HALF_MESSAGE = 323

    # Tools: topics.
    UPDATE_AND_CREATE_TOPIC = 17
    GET_ALL_TOPIC_CONFIG = 21
    GET_TOPIC_CONFIG = 351
    GET_TOPIC_STATS_INFO = 202
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    GET_TOPICS_BY_CLUSTER = 224
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305

    # Tools: groups.
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    GET_CONSUME_STATS = 208
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    QUERY_CONSUME_TIME_SPAN = 303
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345

    # Tools: broker and cluster.
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    GET_BROKER_CLUSTER_INFO = 106
    VIEW_BROKER_STATS_DATA = 315


class ResponseCode(IntEnum):
    """Result of a request."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    FLOW_CONTROL = 215
    #: Apache's answer to a decision after the message's own time for its first check, and to a
    #: recall that cannot be.
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1_500


#: The end of our broker's answer to an unknown request code.
NOT_KNOWN_HERE = "is not known here"

#: Languages of clients. A language's position is its number in a binary header.
LANGUAGES = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
)
OUR_LANGUAGE = "PYTHON"
UNKNOWN_LANGUAGE = "OTHER"
#: RocketMQ 5.3.3's number. Clients derive from it whether the broker supports expression filters.
OUR_VERSION = 479


def language_name(number: int) -> str:
    """Return the language with this number, or OTHER for an unknown number."""
    return LANGUAGES[number] if 0 <= number < len(LANGUAGES) else UNKNOWN_LANGUAGE


_V4_2_0_SNAPSHOT = 252


def version_name(number: int) -> str:
    """Return RocketMQ's name of a client's version, or the number for versions before 4.2."""
    place = number - _V4_2_0_SNAPSHOT
    if place < 0:
        return str(number)
    # A major version has ten minor versions of ten patches each, and each patch has a snapshot.
    minors = 4 * 10 + 2 + place // 20
    snapshot = "" if place % 2 else "_SNAPSHOT"
    return f"V{minors // 10}_{minors % 10}_{place % 20 // 2}{snapshot}"
