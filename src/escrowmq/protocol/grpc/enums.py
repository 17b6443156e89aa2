"""The enums of RocketMQ's gRPC protocol, with the names and numbers that travel."""

from __future__ import annotations

from enum import IntEnum


class GrpcCode(IntEnum):
    """Result code inside the response; the gRPC status itself stays 0."""

    CODE_UNSPECIFIED = 0
    OK = 20_000
    MULTIPLE_RESULTS = 30_000
    BAD_REQUEST = 40_000
    ILLEGAL_ACCESS_POINT = 40_001
    ILLEGAL_TOPIC = 40_002
    ILLEGAL_CONSUMER_GROUP = 40_003
    ILLEGAL_MESSAGE_TAG = 40_004
    ILLEGAL_MESSAGE_KEY = 40_005
    ILLEGAL_MESSAGE_GROUP = 40_006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40_007
    INVALID_TRANSACTION_ID = 40_008
    ILLEGAL_MESSAGE_ID = 40_009
    ILLEGAL_FILTER_EXPRESSION = 40_010
    ILLEGAL_INVISIBLE_TIME = 40_011
    ILLEGAL_DELIVERY_TIME = 40_012
    INVALID_RECEIPT_HANDLE = 40_013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40_014
    UNRECOGNIZED_CLIENT_TYPE = 40_015
    MESSAGE_CORRUPTED = 40_016
    CLIENT_ID_REQUIRED = 40_017
    ILLEGAL_POLLING_TIME = 40_018
    ILLEGAL_OFFSET = 40_019
    ILLEGAL_LITE_TOPIC = 40_020
    UNAUTHORIZED = 40_100
    PAYMENT_REQUIRED = 40_200
    FORBIDDEN = 40_300
    NOT_FOUND = 40_400
    MESSAGE_NOT_FOUND = 40_401
    TOPIC_NOT_FOUND = 40_402
    CONSUMER_GROUP_NOT_FOUND = 40_403
    OFFSET_NOT_FOUND = 40_404
    REQUEST_TIMEOUT = 40_800
    PAYLOAD_TOO_LARGE = 41_300
    MESSAGE_BODY_TOO_LARGE = 41_301
    MESSAGE_BODY_EMPTY = 41_302
    PRECONDITION_FAILED = 42_800
    TOO_MANY_REQUESTS = 42_900
    LITE_TOPIC_QUOTA_EXCEEDED = 42_901
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 42_902
    REQUEST_HEADER_FIELDS_TOO_LARGE = 43_100
    MESSAGE_PROPERTIES_TOO_LARGE = 43_101
    INTERNAL_ERROR = 50_000
    INTERNAL_SERVER_ERROR = 50_001
    HA_NOT_AVAILABLE = 50_002
    NOT_IMPLEMENTED = 50_100
    PROXY_TIMEOUT = 50_400
    MASTER_PERSISTENCE_TIMEOUT = 50_401
    SLAVE_PERSISTENCE_TIMEOUT = 50_402
    UNSUPPORTED = 50_500
    VERSION_UNSUPPORTED = 50_501
    VERIFY_FIFO_MESSAGE_UNSUPPORTED = 50_502
    FAILED_TO_CONSUME_MESSAGE = 60_000


class GrpcResolution(IntEnum):
    """A producer's decision; unspecified means that it does not know yet."""

    TRANSACTION_RESOLUTION_UNSPECIFIED = 0
    COMMIT = 1
    ROLLBACK = 2


class GrpcSource(IntEnum):
    """Whether a decision comes by itself or answers a back-check."""

    SOURCE_UNSPECIFIED = 0
    SOURCE_CLIENT = 1
    SOURCE_SERVER_CHECK = 2


class GrpcPermission(IntEnum):
    """What a client may do with a queue."""

    PERMISSION_UNSPECIFIED = 0
    NONE = 1
    READ = 2
    WRITE = 3
    READ_WRITE = 4


class GrpcFilterType(IntEnum):
    """The language of a subscription."""

    FILTER_TYPE_UNSPECIFIED = 0
    TAG = 1
    SQL = 2


class GrpcScheme(IntEnum):
    """The kind of an address."""

    ADDRESS_SCHEME_UNSPECIFIED = 0
    IPv4 = 1
    IPv6 = 2
    DOMAIN_NAME = 3


class GrpcMessageType(IntEnum):
    """The kind of a message."""

    MESSAGE_TYPE_UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6


class GrpcDigestType(IntEnum):
    """The checksum of a body."""

    DIGEST_TYPE_UNSPECIFIED = 0
    CRC32 = 1
    MD5 = 2
    SHA1 = 3


class GrpcClientType(IntEnum):
    """The kind of a client."""

    CLIENT_TYPE_UNSPECIFIED = 0
    PRODUCER = 1
    PUSH_CONSUMER = 2
    SIMPLE_CONSUMER = 3
    PULL_CONSUMER = 4
    LITE_PUSH_CONSUMER = 5
    LITE_SIMPLE_CONSUMER = 6


class GrpcEncoding(IntEnum):
    """How a body is compressed."""

    ENCODING_UNSPECIFIED = 0
    IDENTITY = 1
    GZIP = 2


class GrpcLanguage(IntEnum):
    """The language of a client."""

    LANGUAGE_UNSPECIFIED = 0
    JAVA = 1
    CPP = 2
    DOT_NET = 3
    GOLANG = 4
    RUST = 5
    PYTHON = 6
    PHP = 7
    NODE_JS = 8
    RUBY = 9
    OBJECTIVE_C = 10
    DART = 11
    KOTLIN = 12


class GrpcOffsetPolicy(IntEnum):
    """Which offset of a queue a client asks for."""

    BEGINNING = 0
    END = 1
    TIMESTAMP = 2


#: By the name that the protocol has for each.
ENUMS: dict[str, type[IntEnum]] = {
    "AddressScheme": GrpcScheme,
    "ClientType": GrpcClientType,
    "Code": GrpcCode,
    "DigestType": GrpcDigestType,
    "Encoding": GrpcEncoding,
    "FilterType": GrpcFilterType,
    "Language": GrpcLanguage,
    "MessageType": GrpcMessageType,
    "Permission": GrpcPermission,
    "QueryOffsetPolicy": GrpcOffsetPolicy,
    "TransactionResolution": GrpcResolution,
    "TransactionSource": GrpcSource,
}
