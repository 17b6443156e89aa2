"""The messages and methods of RocketMQ's gRPC protocol, as one table.

A line is ``Message: field number type, …``. After the number, ``?`` marks a field whose absence
differs from its default, ``*`` a repeated field, and ``/name`` a field of the oneof ``name``. A
type is a scalar of protobuf, ``strings`` (a map of texts), an enum of ``enums.py``, a message of
this table, or protobuf's Duration or Timestamp.

Messages of methods that the broker refuses (lite topics) are left out, except their status.
"""

from __future__ import annotations

MESSAGES = """
FilterExpression: type 1 FilterType, expression 2 string
RetryPolicy: max_attempts 1 int32, exponential_backoff 2/strategy ExponentialBackoff,
  customized_backoff 3/strategy CustomizedBackoff
ExponentialBackoff: initial 1 Duration, max 2 Duration, multiplier 3 float
CustomizedBackoff: next 1* Duration
Resource: resource_namespace 1 string, name 2 string
SubscriptionEntry: topic 1 Resource, expression 2 FilterExpression
Address: host 1 string, port 2 int32
Endpoints: scheme 1 AddressScheme, addresses 2* Address
Broker: name 1 string, id 2 int32, endpoints 3 Endpoints
MessageQueue: topic 1 Resource, id 2 int32, permission 3 Permission, broker 4 Broker,
  accept_message_types 5* MessageType
Digest: type 1 DigestType, checksum 2 string
SystemProperties: tag 1? string, keys 2* string, message_id 3 string, body_digest 4 Digest,
  body_encoding 5 Encoding, message_type 6 MessageType, born_timestamp 7 Timestamp,
  born_host 8 string, store_timestamp 9? Timestamp, store_host 10 string,
  delivery_timestamp 11? Timestamp, receipt_handle 12? string, queue_id 13 int32,
  queue_offset 14? int64, invisible_duration 15? Duration, delivery_attempt 16? int32,
  message_group 17? string, trace_context 18? string,
  orphaned_transaction_recovery_duration 19? Duration, dead_letter_queue 20? DeadLetterQueue,
  lite_topic 21? string, priority 22? int32
DeadLetterQueue: topic 1 string, message_id 2 string
Message: topic 1 Resource, user_properties 2* strings, system_properties 3 SystemProperties,
  body 4 bytes
Assignment: message_queue 1 MessageQueue
Status: code 1 Code, message 2 string
UA: language 1 Language, version 2 string, platform 3 string, hostname 4 string
Settings: client_type 1? ClientType, access_point 2? Endpoints, backoff_policy 3? RetryPolicy,
  request_timeout 4? Duration, publishing 5/pub_sub Publishing,
  subscription 6/pub_sub Subscription, user_agent 7 UA, metric 8 Metric
Publishing: topics 1* Resource, max_body_size 2 int32, validate_message_type 3 bool
Subscription: group 1? Resource, subscriptions 2* SubscriptionEntry, fifo 3? bool,
  receive_batch_size 4? int32, long_polling_timeout 5? Duration,
  lite_subscription_quota 6? int32, max_lite_topic_size 7? int32
Metric: on 1 bool, endpoints 2? Endpoints

QueryRouteRequest: topic 1 Resource, endpoints 2 Endpoints
QueryRouteResponse: status 1 Status, message_queues 2* MessageQueue
SendMessageRequest: messages 1* Message
SendResultEntry: status 1 Status, message_id 2 string, transaction_id 3 string, offset 4 int64,
  recall_handle 5 string
SendMessageResponse: status 1 Status, entries 2* SendResultEntry
QueryAssignmentRequest: topic 1 Resource, group 2 Resource, endpoints 3 Endpoints
QueryAssignmentResponse: status 1 Status, assignments 2* Assignment
ReceiveMessageRequest: group 1 Resource, message_queue 2 MessageQueue,
  filter_expression 3 FilterExpression, batch_size 4 int32, invisible_duration 5? Duration,
  auto_renew 6 bool, long_polling_timeout 7? Duration, attempt_id 8? string
ReceiveMessageResponse: status 1/content Status, message 2/content Message,
  delivery_timestamp 3/content Timestamp
AckMessageEntry: message_id 1 string, receipt_handle 2 string, lite_topic 3? string
AckMessageRequest: group 1 Resource, topic 2 Resource, entries 3* AckMessageEntry
AckMessageResultEntry: message_id 1 string, receipt_handle 2 string, status 3 Status
AckMessageResponse: status 1 Status, entries 2* AckMessageResultEntry
ForwardMessageToDeadLetterQueueRequest: group 1 Resource, topic 2 Resource,
  receipt_handle 3 string, message_id 4 string, delivery_attempt 5 int32,
  max_delivery_attempts 6 int32, lite_topic 7? string
ForwardMessageToDeadLetterQueueResponse: status 1 Status
HeartbeatRequest: group 1? Resource, client_type 2 ClientType
HeartbeatResponse: status 1 Status
EndTransactionRequest: topic 1 Resource, message_id 2 string, transaction_id 3 string,
  resolution 4 TransactionResolution, source 5 TransactionSource, trace_context 6 string
EndTransactionResponse: status 1 Status
PrintThreadStackTraceCommand: nonce 1 string
ReconnectEndpointsCommand: nonce 1 string
ThreadStackTrace: nonce 1 string, thread_stack_trace 2? string
VerifyMessageCommand: nonce 1 string, message 2 Message
VerifyMessageResult: nonce 1 string
RecoverOrphanedTransactionCommand: message 1 Message, transaction_id 2 string
NotifyUnsubscribeLiteCommand: lite_topic 1 string
TelemetryCommand: status 1? Status, settings 2/command Settings,
  thread_stack_trace 3/command ThreadStackTrace,
  verify_message_result 4/command VerifyMessageResult,
  recover_orphaned_transaction_command 5/command RecoverOrphanedTransactionCommand,
  print_thread_stack_trace_command 6/command PrintThreadStackTraceCommand,
  verify_message_command 7/command VerifyMessageCommand,
  reconnect_endpoints_command 8/command ReconnectEndpointsCommand,
  notify_unsubscribe_lite_command 9/command NotifyUnsubscribeLiteCommand
NotifyClientTerminationRequest: group 1? Resource
NotifyClientTerminationResponse: status 1 Status
ChangeInvisibleDurationRequest: group 1 Resource, topic 2 Resource, receipt_handle 3 string,
  invisible_duration 4 Duration, message_id 5 string, lite_topic 6? string, suspend 7? bool
ChangeInvisibleDurationResponse: status 1 Status, receipt_handle 2 string
PullMessageRequest: group 1 Resource, message_queue 2 MessageQueue, offset 3 int64,
  batch_size 4 int32, filter_expression 5 FilterExpression, long_polling_timeout 6 Duration
PullMessageResponse: status 1/content Status, message 2/content Message,
  next_offset 3/content int64
UpdateOffsetRequest: group 1 Resource, message_queue 2 MessageQueue, offset 3 int64
UpdateOffsetResponse: status 1 Status
GetOffsetRequest: group 1 Resource, message_queue 2 MessageQueue
GetOffsetResponse: status 1 Status, offset 2 int64
QueryOffsetRequest: message_queue 1 MessageQueue, query_offset_policy 2 QueryOffsetPolicy,
  timestamp 3? Timestamp
QueryOffsetResponse: status 1 Status, offset 2 int64
RecallMessageRequest: topic 1 Resource, recall_handle 2 string
RecallMessageResponse: status 1 Status, message_id 2 string
SyncLiteSubscriptionResponse: status 1 Status
"""

SERVICE = "apache.rocketmq.v2.MessagingService"
"""The service; its messages and enums are in the same package."""


def path_of(method: str) -> bytes:
    """Return the HTTP/2 path of a method."""
    return f"/{SERVICE}/{method}".encode()
