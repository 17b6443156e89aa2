"""Names of properties that RocketMQ gives a meaning: users cannot set them, nor see them."""

from __future__ import annotations

from escrowmq.protocol.message import properties as known

SHARDING_KEY = "__SHARDINGKEY"
TRACE_CONTEXT = "TRACE_CONTEXT"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"

RESERVED = frozenset(
    {
        *known.SET_BY_PRODUCERS,
        *known.SET_BY_BROKERS,
        SHARDING_KEY,
        TRACE_CONTEXT,
        DLQ_ORIGIN_TOPIC,
        DLQ_ORIGIN_MESSAGE_ID,
        known.LEDGER,
        known.ALLOWED_MS,
        known.OWN_TRANSACTION_ID,
        # RocketMQ's, with no meaning for this broker.
        "1ST_POP_TIME",
        "ARRIVE_TIME",
        "BORN_TIMESTAMP",
        "BUYER_ID",
        "CONSUME_START_TIME",
        "CORRECTION_FLAG",
        "CORRELATION_ID",
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "INNER_MULTI_QUEUE_OFFSET",
        "INSTANCE_ID",
        "MAX_OFFSET",
        "MAX_RECONSUME_TIMES",
        "MIN_OFFSET",
        "MQ2_FLAG",
        "MSG_TYPE",
        "POP_CK_OFFSET",
        "PUSH_REPLY_TIME",
        "RECONSUME_TIME",
        "REPLY_TO_CLIENT",
        "TIMER_DELAY_LEVEL",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DEQUEUE_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_OUT_MS",
        "TIMER_ROLL_TIMES",
        "TRANSFER_FLAG",
        "TTL",
        "__BORNHOST",
    }
)
