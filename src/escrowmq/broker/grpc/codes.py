"""What RocketMQ's gRPC clients are told when a request is refused."""

from __future__ import annotations

from escrowmq.model.errors import EscrowError, ProtocolViolation, RequestRefused, Unavailable
from escrowmq.protocol.grpc.enums import GrpcCode
from escrowmq.protocol.grpc.messages import Status

OK = int(GrpcCode.OK)
#: Characters of the text of a status.
TEXT_CHARS_MAX = 1_024

#: RocketMQ's code for each of these codes of our errors; ``code_of`` chooses it for all others.
CODES: dict[str, GrpcCode] = {
    "already_committed": GrpcCode.PRECONDITION_FAILED,
    "already_parked": GrpcCode.PRECONDITION_FAILED,
    "already_rolled_back": GrpcCode.PRECONDITION_FAILED,
    "body_corrupt": GrpcCode.MESSAGE_CORRUPTED,
    "body_empty": GrpcCode.MESSAGE_BODY_EMPTY,
    "body_too_large": GrpcCode.MESSAGE_BODY_TOO_LARGE,
    "client_id_missing": GrpcCode.CLIENT_ID_REQUIRED,
    "client_type_unknown": GrpcCode.UNRECOGNIZED_CLIENT_TYPE,
    "client_of_other_user": GrpcCode.FORBIDDEN,
    "credentials_malformed": GrpcCode.UNAUTHORIZED,
    "credentials_wrong": GrpcCode.UNAUTHORIZED,
    "delay_illegal": GrpcCode.ILLEGAL_DELIVERY_TIME,
    "disk_full": GrpcCode.INTERNAL_SERVER_ERROR,
    "filter_malformed": GrpcCode.ILLEGAL_FILTER_EXPRESSION,
    "filter_unsupported": GrpcCode.ILLEGAL_FILTER_EXPRESSION,
    "group_forbidden": GrpcCode.FORBIDDEN,
    "group_illegal": GrpcCode.ILLEGAL_CONSUMER_GROUP,
    "group_unknown": GrpcCode.CONSUMER_GROUP_NOT_FOUND,
    "invisible_time_illegal": GrpcCode.ILLEGAL_INVISIBLE_TIME,
    "log_offset_wrong": GrpcCode.INVALID_TRANSACTION_ID,
    "message_group_illegal": GrpcCode.ILLEGAL_MESSAGE_GROUP,
    "message_id_illegal": GrpcCode.ILLEGAL_MESSAGE_ID,
    "message_key_illegal": GrpcCode.ILLEGAL_MESSAGE_KEY,
    "message_tag_illegal": GrpcCode.ILLEGAL_MESSAGE_TAG,
    "message_type_unsupported": GrpcCode.UNSUPPORTED,
    "message_type_wrong": GrpcCode.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    "method_unsupported": GrpcCode.UNSUPPORTED,
    "no_such_delayed_message": GrpcCode.MESSAGE_NOT_FOUND,
    "no_such_half_message": GrpcCode.INVALID_TRANSACTION_ID,
    "not_allowed": GrpcCode.FORBIDDEN,
    "not_authenticated": GrpcCode.UNAUTHORIZED,
    "offset_illegal": GrpcCode.ILLEGAL_OFFSET,
    "offset_unknown": GrpcCode.OFFSET_NOT_FOUND,
    "other_history": GrpcCode.INVALID_TRANSACTION_ID,
    "pop_count_illegal": GrpcCode.BAD_REQUEST,
    "other_user": GrpcCode.UNAUTHORIZED,
    "polling_time_illegal": GrpcCode.ILLEGAL_POLLING_TIME,
    "producer_group_wrong": GrpcCode.INVALID_TRANSACTION_ID,
    "properties_too_large": GrpcCode.MESSAGE_PROPERTIES_TOO_LARGE,
    "property_illegal": GrpcCode.ILLEGAL_MESSAGE_PROPERTY_KEY,
    "recall_handle_illegal": GrpcCode.BAD_REQUEST,
    "recall_too_late": GrpcCode.PRECONDITION_FAILED,
    "receipt_malformed": GrpcCode.INVALID_RECEIPT_HANDLE,
    "receipt_stale": GrpcCode.INVALID_RECEIPT_HANDLE,
    "replayed": GrpcCode.UNAUTHORIZED,
    "request_too_old": GrpcCode.UNAUTHORIZED,
    "store_failed": GrpcCode.INTERNAL_SERVER_ERROR,
    "tls_required": GrpcCode.UNAUTHORIZED,
    "topic_deleted": GrpcCode.PRECONDITION_FAILED,
    "topic_illegal": GrpcCode.ILLEGAL_TOPIC,
    "topic_not_readable": GrpcCode.FORBIDDEN,
    "topic_not_writable": GrpcCode.FORBIDDEN,
    "topic_of_system": GrpcCode.ILLEGAL_TOPIC,
    "topic_unknown": GrpcCode.TOPIC_NOT_FOUND,
    "transaction_id_illegal": GrpcCode.INVALID_TRANSACTION_ID,
    "transaction_id_wrong": GrpcCode.INVALID_TRANSACTION_ID,
    "user_disabled": GrpcCode.UNAUTHORIZED,
    "writer_closed": GrpcCode.INTERNAL_SERVER_ERROR,
}


def code_of(error: BaseException) -> GrpcCode:
    """Return the code for an error."""
    if isinstance(error, EscrowError):
        known = CODES.get(error.code)
        if known is not None:
            return known
        if isinstance(error, Unavailable):
            return GrpcCode.TOO_MANY_REQUESTS
        if isinstance(error, RequestRefused | ProtocolViolation):
            return GrpcCode.BAD_REQUEST
    return GrpcCode.INTERNAL_SERVER_ERROR


def status_of(error: BaseException) -> Status:
    """Return an error as the status that a client reads."""
    text = str(error) if isinstance(error, EscrowError) else "the broker failed; its log says why"
    return Status(code=code_of(error), message=text[:TEXT_CHARS_MAX])


def ok() -> Status:
    """Return the status of a request that succeeded."""
    return Status(code=OK, message="OK")


def common_status(statuses: list[Status]) -> Status:
    """Return the status of a request from those of its entries."""
    codes = {status.code for status in statuses}
    if len(codes) == 1:
        return statuses[0]
    return Status(code=GrpcCode.MULTIPLE_RESULTS, message="see the entries")
