# Made by `python -m tests.unit.protocol.grpc_stubs`.

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Generic, Self, TypeVar

_T = TypeVar("_T")

class Repeated(Generic[_T]):
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[_T]: ...
    def __getitem__(self, at: int) -> _T: ...
    def append(self, value: _T) -> None: ...
    def extend(self, values: Iterable[_T]) -> None: ...

class GrpcMessage:
    @classmethod
    def FromString(cls, data: bytes) -> Self: ...
    def SerializeToString(self) -> bytes: ...
    def HasField(self, name: str) -> bool: ...
    def WhichOneof(self, name: str) -> str | None: ...
    def CopyFrom(self, other: Self) -> None: ...

class Duration(GrpcMessage):
    seconds: int
    nanos: int
    def __init__(
        self,
        *,
        seconds: int | None = ...,
        nanos: int | None = ...,
    ) -> None: ...

class Timestamp(GrpcMessage):
    seconds: int
    nanos: int
    def __init__(
        self,
        *,
        seconds: int | None = ...,
        nanos: int | None = ...,
    ) -> None: ...

class FilterExpression(GrpcMessage):
    type: int
    expression: str
    def __init__(
        self,
        *,
        type: int | None = ...,
        expression: str | None = ...,
    ) -> None: ...

class RetryPolicy(GrpcMessage):
    max_attempts: int
    exponential_backoff: ExponentialBackoff
    customized_backoff: CustomizedBackoff
    def __init__(
        self,
        *,
        max_attempts: int | None = ...,
        exponential_backoff: ExponentialBackoff | None = ...,
        customized_backoff: CustomizedBackoff | None = ...,
    ) -> None: ...

class ExponentialBackoff(GrpcMessage):
    initial: Duration
    max: Duration
    multiplier: float
    def __init__(
        self,
        *,
        initial: Duration | None = ...,
        max: Duration | None = ...,
        multiplier: float | None = ...,
    ) -> None: ...

class CustomizedBackoff(GrpcMessage):
    next: Repeated[Duration]
    def __init__(
        self,
        *,
        next: Iterable[Duration] = ...,
    ) -> None: ...

class Resource(GrpcMessage):
    resource_namespace: str
    name: str
    def __init__(
        self,
        *,
        resource_namespace: str | None = ...,
        name: str | None = ...,
    ) -> None: ...

class SubscriptionEntry(GrpcMessage):
    topic: Resource
    expression: FilterExpression
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        expression: FilterExpression | None = ...,
    ) -> None: ...

class Address(GrpcMessage):
    host: str
    port: int
    def __init__(
        self,
        *,
        host: str | None = ...,
        port: int | None = ...,
    ) -> None: ...

class Endpoints(GrpcMessage):
    scheme: int
    addresses: Repeated[Address]
    def __init__(
        self,
        *,
        scheme: int | None = ...,
        addresses: Iterable[Address] = ...,
    ) -> None: ...

class Broker(GrpcMessage):
    name: str
    id: int
    endpoints: Endpoints
    def __init__(
        self,
        *,
        name: str | None = ...,
        id: int | None = ...,
        endpoints: Endpoints | None = ...,
    ) -> None: ...

class MessageQueue(GrpcMessage):
    topic: Resource
    id: int
    permission: int
    broker: Broker
    accept_message_types: Repeated[int]
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        id: int | None = ...,
        permission: int | None = ...,
        broker: Broker | None = ...,
        accept_message_types: Iterable[int] = ...,
    ) -> None: ...

class Digest(GrpcMessage):
    type: int
    checksum: str
    def __init__(
        self,
        *,
        type: int | None = ...,
        checksum: str | None = ...,
    ) -> None: ...

class SystemProperties(GrpcMessage):
    tag: str
    keys: Repeated[str]
    message_id: str
    body_digest: Digest
    body_encoding: int
    message_type: int
    born_timestamp: Timestamp
    born_host: str
    store_timestamp: Timestamp
    store_host: str
    delivery_timestamp: Timestamp
    receipt_handle: str
    queue_id: int
    queue_offset: int
    invisible_duration: Duration
    delivery_attempt: int
    message_group: str
    trace_context: str
    orphaned_transaction_recovery_duration: Duration
    dead_letter_queue: DeadLetterQueue
    lite_topic: str
    priority: int
    def __init__(
        self,
        *,
        tag: str | None = ...,
        keys: Iterable[str] = ...,
        message_id: str | None = ...,
        body_digest: Digest | None = ...,
        body_encoding: int | None = ...,
        message_type: int | None = ...,
        born_timestamp: Timestamp | None = ...,
        born_host: str | None = ...,
        store_timestamp: Timestamp | None = ...,
        store_host: str | None = ...,
        delivery_timestamp: Timestamp | None = ...,
        receipt_handle: str | None = ...,
        queue_id: int | None = ...,
        queue_offset: int | None = ...,
        invisible_duration: Duration | None = ...,
        delivery_attempt: int | None = ...,
        message_group: str | None = ...,
        trace_context: str | None = ...,
        orphaned_transaction_recovery_duration: Duration | None = ...,
        dead_letter_queue: DeadLetterQueue | None = ...,
        lite_topic: str | None = ...,
        priority: int | None = ...,
    ) -> None: ...

class DeadLetterQueue(GrpcMessage):
    topic: str
    message_id: str
    def __init__(
        self,
        *,
        topic: str | None = ...,
        message_id: str | None = ...,
    ) -> None: ...

class Message(GrpcMessage):
    topic: Resource
    user_properties: MutableMapping[str, str]
    system_properties: SystemProperties
    body: bytes
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        user_properties: Mapping[str, str] = ...,
        system_properties: SystemProperties | None = ...,
        body: bytes | None = ...,
    ) -> None: ...

class Assignment(GrpcMessage):
    message_queue: MessageQueue
    def __init__(
        self,
        *,
        message_queue: MessageQueue | None = ...,
    ) -> None: ...

class Status(GrpcMessage):
    code: int
    message: str
    def __init__(
        self,
        *,
        code: int | None = ...,
        message: str | None = ...,
    ) -> None: ...

class UA(GrpcMessage):
    language: int
    version: str
    platform: str
    hostname: str
    def __init__(
        self,
        *,
        language: int | None = ...,
        version: str | None = ...,
        platform: str | None = ...,
        hostname: str | None = ...,
    ) -> None: ...

class Settings(GrpcMessage):
    client_type: int
    access_point: Endpoints
    backoff_policy: RetryPolicy
    request_timeout: Duration
    publishing: Publishing
    subscription: Subscription
    user_agent: UA
    metric: Metric
    def __init__(
        self,
        *,
        client_type: int | None = ...,
        access_point: Endpoints | None = ...,
        backoff_policy: RetryPolicy | None = ...,
        request_timeout: Duration | None = ...,
        publishing: Publishing | None = ...,
        subscription: Subscription | None = ...,
        user_agent: UA | None = ...,
        metric: Metric | None = ...,
    ) -> None: ...

class Publishing(GrpcMessage):
    topics: Repeated[Resource]
    max_body_size: int
    validate_message_type: bool
    def __init__(
        self,
        *,
        topics: Iterable[Resource] = ...,
        max_body_size: int | None = ...,
        validate_message_type: bool | None = ...,
    ) -> None: ...

class Subscription(GrpcMessage):
    group: Resource
    subscriptions: Repeated[SubscriptionEntry]
    fifo: bool
    receive_batch_size: int
    long_polling_timeout: Duration
    lite_subscription_quota: int
    max_lite_topic_size: int
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        subscriptions: Iterable[SubscriptionEntry] = ...,
        fifo: bool | None = ...,
        receive_batch_size: int | None = ...,
        long_polling_timeout: Duration | None = ...,
        lite_subscription_quota: int | None = ...,
        max_lite_topic_size: int | None = ...,
    ) -> None: ...

class Metric(GrpcMessage):
    on: bool
    endpoints: Endpoints
    def __init__(
        self,
        *,
        on: bool | None = ...,
        endpoints: Endpoints | None = ...,
    ) -> None: ...

class QueryRouteRequest(GrpcMessage):
    topic: Resource
    endpoints: Endpoints
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        endpoints: Endpoints | None = ...,
    ) -> None: ...

class QueryRouteResponse(GrpcMessage):
    status: Status
    message_queues: Repeated[MessageQueue]
    def __init__(
        self,
        *,
        status: Status | None = ...,
        message_queues: Iterable[MessageQueue] = ...,
    ) -> None: ...

class SendMessageRequest(GrpcMessage):
    messages: Repeated[Message]
    def __init__(
        self,
        *,
        messages: Iterable[Message] = ...,
    ) -> None: ...

class SendResultEntry(GrpcMessage):
    status: Status
    message_id: str
    transaction_id: str
    offset: int
    recall_handle: str
    def __init__(
        self,
        *,
        status: Status | None = ...,
        message_id: str | None = ...,
        transaction_id: str | None = ...,
        offset: int | None = ...,
        recall_handle: str | None = ...,
    ) -> None: ...

class SendMessageResponse(GrpcMessage):
    status: Status
    entries: Repeated[SendResultEntry]
    def __init__(
        self,
        *,
        status: Status | None = ...,
        entries: Iterable[SendResultEntry] = ...,
    ) -> None: ...

class QueryAssignmentRequest(GrpcMessage):
    topic: Resource
    group: Resource
    endpoints: Endpoints
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        group: Resource | None = ...,
        endpoints: Endpoints | None = ...,
    ) -> None: ...

class QueryAssignmentResponse(GrpcMessage):
    status: Status
    assignments: Repeated[Assignment]
    def __init__(
        self,
        *,
        status: Status | None = ...,
        assignments: Iterable[Assignment] = ...,
    ) -> None: ...

class ReceiveMessageRequest(GrpcMessage):
    group: Resource
    message_queue: MessageQueue
    filter_expression: FilterExpression
    batch_size: int
    invisible_duration: Duration
    auto_renew: bool
    long_polling_timeout: Duration
    attempt_id: str
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        message_queue: MessageQueue | None = ...,
        filter_expression: FilterExpression | None = ...,
        batch_size: int | None = ...,
        invisible_duration: Duration | None = ...,
        auto_renew: bool | None = ...,
        long_polling_timeout: Duration | None = ...,
        attempt_id: str | None = ...,
    ) -> None: ...

class ReceiveMessageResponse(GrpcMessage):
    status: Status
    message: Message
    delivery_timestamp: Timestamp
    def __init__(
        self,
        *,
        status: Status | None = ...,
        message: Message | None = ...,
        delivery_timestamp: Timestamp | None = ...,
    ) -> None: ...

class AckMessageEntry(GrpcMessage):
    message_id: str
    receipt_handle: str
    lite_topic: str
    def __init__(
        self,
        *,
        message_id: str | None = ...,
        receipt_handle: str | None = ...,
        lite_topic: str | None = ...,
    ) -> None: ...

class AckMessageRequest(GrpcMessage):
    group: Resource
    topic: Resource
    entries: Repeated[AckMessageEntry]
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        topic: Resource | None = ...,
        entries: Iterable[AckMessageEntry] = ...,
    ) -> None: ...

class AckMessageResultEntry(GrpcMessage):
    message_id: str
    receipt_handle: str
    status: Status
    def __init__(
        self,
        *,
        message_id: str | None = ...,
        receipt_handle: str | None = ...,
        status: Status | None = ...,
    ) -> None: ...

class AckMessageResponse(GrpcMessage):
    status: Status
    entries: Repeated[AckMessageResultEntry]
    def __init__(
        self,
        *,
        status: Status | None = ...,
        entries: Iterable[AckMessageResultEntry] = ...,
    ) -> None: ...

class ForwardMessageToDeadLetterQueueRequest(GrpcMessage):
    group: Resource
    topic: Resource
    receipt_handle: str
    message_id: str
    delivery_attempt: int
    max_delivery_attempts: int
    lite_topic: str
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        topic: Resource | None = ...,
        receipt_handle: str | None = ...,
        message_id: str | None = ...,
        delivery_attempt: int | None = ...,
        max_delivery_attempts: int | None = ...,
        lite_topic: str | None = ...,
    ) -> None: ...

class ForwardMessageToDeadLetterQueueResponse(GrpcMessage):
    status: Status
    def __init__(
        self,
        *,
        status: Status | None = ...,
    ) -> None: ...

class HeartbeatRequest(GrpcMessage):
    group: Resource
    client_type: int
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        client_type: int | None = ...,
    ) -> None: ...

class HeartbeatResponse(GrpcMessage):
    status: Status
    def __init__(
        self,
        *,
        status: Status | None = ...,
    ) -> None: ...

class EndTransactionRequest(GrpcMessage):
    topic: Resource
    message_id: str
    transaction_id: str
    resolution: int
    source: int
    trace_context: str
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        message_id: str | None = ...,
        transaction_id: str | None = ...,
        resolution: int | None = ...,
        source: int | None = ...,
        trace_context: str | None = ...,
    ) -> None: ...

class EndTransactionResponse(GrpcMessage):
    status: Status
    def __init__(
        self,
        *,
        status: Status | None = ...,
    ) -> None: ...

class PrintThreadStackTraceCommand(GrpcMessage):
    nonce: str
    def __init__(
        self,
        *,
        nonce: str | None = ...,
    ) -> None: ...

class ReconnectEndpointsCommand(GrpcMessage):
    nonce: str
    def __init__(
        self,
        *,
        nonce: str | None = ...,
    ) -> None: ...

class ThreadStackTrace(GrpcMessage):
    nonce: str
    thread_stack_trace: str
    def __init__(
        self,
        *,
        nonce: str | None = ...,
        thread_stack_trace: str | None = ...,
    ) -> None: ...

class VerifyMessageCommand(GrpcMessage):
    nonce: str
    message: Message
    def __init__(
        self,
        *,
        nonce: str | None = ...,
        message: Message | None = ...,
    ) -> None: ...

class VerifyMessageResult(GrpcMessage):
    nonce: str
    def __init__(
        self,
        *,
        nonce: str | None = ...,
    ) -> None: ...

class RecoverOrphanedTransactionCommand(GrpcMessage):
    message: Message
    transaction_id: str
    def __init__(
        self,
        *,
        message: Message | None = ...,
        transaction_id: str | None = ...,
    ) -> None: ...

class NotifyUnsubscribeLiteCommand(GrpcMessage):
    lite_topic: str
    def __init__(
        self,
        *,
        lite_topic: str | None = ...,
    ) -> None: ...

class TelemetryCommand(GrpcMessage):
    status: Status
    settings: Settings
    thread_stack_trace: ThreadStackTrace
    verify_message_result: VerifyMessageResult
    recover_orphaned_transaction_command: RecoverOrphanedTransactionCommand
    print_thread_stack_trace_command: PrintThreadStackTraceCommand
    verify_message_command: VerifyMessageCommand
    reconnect_endpoints_command: ReconnectEndpointsCommand
    notify_unsubscribe_lite_command: NotifyUnsubscribeLiteCommand
    def __init__(
        self,
        *,
        status: Status | None = ...,
        settings: Settings | None = ...,
        thread_stack_trace: ThreadStackTrace | None = ...,
        verify_message_result: VerifyMessageResult | None = ...,
        recover_orphaned_transaction_command: RecoverOrphanedTransactionCommand | None = ...,
        print_thread_stack_trace_command: PrintThreadStackTraceCommand | None = ...,
        verify_message_command: VerifyMessageCommand | None = ...,
        reconnect_endpoints_command: ReconnectEndpointsCommand | None = ...,
        notify_unsubscribe_lite_command: NotifyUnsubscribeLiteCommand | None = ...,
    ) -> None: ...

class NotifyClientTerminationRequest(GrpcMessage):
    group: Resource
    def __init__(
        self,
        *,
        group: Resource | None = ...,
    ) -> None: ...

class NotifyClientTerminationResponse(GrpcMessage):
    status: Status
    def __init__(
        self,
        *,
        status: Status | None = ...,
    ) -> None: ...

class ChangeInvisibleDurationRequest(GrpcMessage):
    group: Resource
    topic: Resource
    receipt_handle: str
    invisible_duration: Duration
    message_id: str
    lite_topic: str
    suspend: bool
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        topic: Resource | None = ...,
        receipt_handle: str | None = ...,
        invisible_duration: Duration | None = ...,
        message_id: str | None = ...,
        lite_topic: str | None = ...,
        suspend: bool | None = ...,
    ) -> None: ...

class ChangeInvisibleDurationResponse(GrpcMessage):
    status: Status
    receipt_handle: str
    def __init__(
        self,
        *,
        status: Status | None = ...,
        receipt_handle: str | None = ...,
    ) -> None: ...

class PullMessageRequest(GrpcMessage):
    group: Resource
    message_queue: MessageQueue
    offset: int
    batch_size: int
    filter_expression: FilterExpression
    long_polling_timeout: Duration
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        message_queue: MessageQueue | None = ...,
        offset: int | None = ...,
        batch_size: int | None = ...,
        filter_expression: FilterExpression | None = ...,
        long_polling_timeout: Duration | None = ...,
    ) -> None: ...

class PullMessageResponse(GrpcMessage):
    status: Status
    message: Message
    next_offset: int
    def __init__(
        self,
        *,
        status: Status | None = ...,
        message: Message | None = ...,
        next_offset: int | None = ...,
    ) -> None: ...

class UpdateOffsetRequest(GrpcMessage):
    group: Resource
    message_queue: MessageQueue
    offset: int
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        message_queue: MessageQueue | None = ...,
        offset: int | None = ...,
    ) -> None: ...

class UpdateOffsetResponse(GrpcMessage):
    status: Status
    def __init__(
        self,
        *,
        status: Status | None = ...,
    ) -> None: ...

class GetOffsetRequest(GrpcMessage):
    group: Resource
    message_queue: MessageQueue
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        message_queue: MessageQueue | None = ...,
    ) -> None: ...

class GetOffsetResponse(GrpcMessage):
    status: Status
    offset: int
    def __init__(
        self,
        *,
        status: Status | None = ...,
        offset: int | None = ...,
    ) -> None: ...

class QueryOffsetRequest(GrpcMessage):
    message_queue: MessageQueue
    query_offset_policy: int
    timestamp: Timestamp
    def __init__(
        self,
        *,
        message_queue: MessageQueue | None = ...,
        query_offset_policy: int | None = ...,
        timestamp: Timestamp | None = ...,
    ) -> None: ...

class QueryOffsetResponse(GrpcMessage):
    status: Status
    offset: int
    def __init__(
        self,
        *,
        status: Status | None = ...,
        offset: int | None = ...,
    ) -> None: ...

class RecallMessageRequest(GrpcMessage):
    topic: Resource
    recall_handle: str
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        recall_handle: str | None = ...,
    ) -> None: ...

class RecallMessageResponse(GrpcMessage):
    status: Status
    message_id: str
    def __init__(
        self,
        *,
        status: Status | None = ...,
        message_id: str | None = ...,
    ) -> None: ...

class SyncLiteSubscriptionResponse(GrpcMessage):
    status: Status
    def __init__(
        self,
        *,
        status: Status | None = ...,
    ) -> None: ...
