"""All metrics of a broker; the page, its reference and the alert rules must match this list.

Names that begin with ``rocketmq_`` are those of a RocketMQ 5 broker, with its labels, units and
bounds, so that dashboards made for it work. Where RocketMQ's exporter puts the unit into the name
and its documentation does not, the page has both names.
"""

from __future__ import annotations

from escrowmq.broker.pages.exposition import Metric, MetricType

#: Labels of all RocketMQ metrics.
COMMON_LABELS = ("cluster", "node_type", "node_id")

_LAG_LABELS = ("consumer_group", "topic", "is_retry", "is_system")
_OUT_LABELS = ("topic", "consumer_group", "is_system")
_IN_LABELS = ("topic", "message_type", "is_system")
_STORE_LABELS = ("storage_type", "storage_medium")


def _counter(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name=name, kind=MetricType.COUNTER, meaning=meaning, labels=labels)


def _gauge(name: str, meaning: str, *labels: str, also: str = "") -> Metric:
    return Metric(name=name, kind=MetricType.GAUGE, meaning=meaning, labels=labels, also=also)


def _histogram(name: str, meaning: str, *labels: str, also: str = "") -> Metric:
    return Metric(name=name, kind=MetricType.HISTOGRAM, meaning=meaning, labels=labels, also=also)


# Metrics of RocketMQ.

WATERMARK = _gauge(
    "rocketmq_processor_watermark",
    "Queued requests: messages (send), decisions (transaction), questions (query_message)",
    "processor",
)
PERMISSION = _gauge(
    "rocketmq_broker_permission",
    "4 if it can be read from, plus 2 if new messages are taken; 0 once the store has failed",
)
TOPICS = _gauge("rocketmq_topic_number", "Topics, including system topics")
GROUPS = _gauge("rocketmq_consumer_group_number", "Consumer groups that were made or seen")
MESSAGES_IN = _counter(
    "rocketmq_messages_in_total",
    "Messages stored; a half message counts for its target topic",
    *_IN_LABELS,
)
BYTES_IN = _counter("rocketmq_throughput_in_total", "Bytes of the messages, as stored", *_IN_LABELS)
MESSAGE_SIZE = _histogram("rocketmq_message_size", "Size of each message, as stored", *_IN_LABELS)
MESSAGES_OUT = _counter(
    "rocketmq_messages_out_total",
    "Messages delivered to consumers, including redeliveries",
    *_OUT_LABELS,
)
BYTES_OUT = _counter("rocketmq_throughput_out_total", "Their bytes", *_OUT_LABELS)
PRODUCERS = _gauge(
    "rocketmq_producer_connections",
    "Producers online, each counted once per group",
    "language",
    "version",
    "protocol_type",
)
CONSUMERS = _gauge(
    "rocketmq_consumer_connections",
    "Consumers online, each counted once per group",
    "consumer_group",
    "language",
    "version",
    "consume_mode",
    "protocol_type",
    "is_system",
)
LAG = _gauge(
    "rocketmq_consumer_lag_messages",
    "Messages that a group has not acknowledged, regardless of its tag filter",
    *_LAG_LABELS,
)
LAG_MS = _gauge(
    "rocketmq_consumer_lag_latency_milliseconds",
    "How long the oldest of these messages has been visible",
    *_LAG_LABELS,
    also="rocketmq_consumer_lag_latency",
)
IN_FLIGHT = _gauge(
    "rocketmq_consumer_inflight_messages",
    "Messages delivered to the group but not acknowledged",
    *_LAG_LABELS,
)
READY = _gauge(
    "rocketmq_consumer_ready_messages", "Messages not yet delivered to the group", *_LAG_LABELS
)
QUEUEING_MS = _gauge(
    "rocketmq_consumer_queueing_latency_milliseconds",
    "How long the oldest undelivered message has been visible",
    *_LAG_LABELS,
    also="rocketmq_consumer_queueing_latency",
)
DEAD = _counter(
    "rocketmq_send_to_dlq_messages_total",
    "Messages that became dead letters of a group",
    "consumer_group",
    "topic",
    "is_system",
)
HALVES = _gauge("rocketmq_half_messages", "Half messages without a decision", "topic")
COMMITTED = _counter("rocketmq_commit_messages_total", "Half messages committed", "topic")
ROLLED_BACK = _counter("rocketmq_rollback_messages_total", "Half messages rolled back", "topic")
FINISH = _histogram(
    "rocketmq_finish_message_latency_milliseconds",
    "How old half messages were when they were committed: in whole seconds, as RocketMQ counts it",
    "topic",
)
STORAGE = _gauge(
    "rocketmq_storage_size_bytes",
    "Bytes of the log",
    *_STORE_LABELS,
    also="rocketmq_storage_size",
)
FLUSH_BEHIND = _gauge(
    "rocketmq_storage_flush_behind_bytes", "Bytes of the log that are not on disk", *_STORE_LABELS
)
RESERVE_MS = _gauge(
    "rocketmq_storage_message_reserve_time_milliseconds",
    "Age of the oldest part of the log",
    *_STORE_LABELS,
    also="rocketmq_storage_message_reserve_time",
)
TIMED = _gauge("rocketmq_timing_messages", "Delayed messages that are not due yet", "topic")
RPC_MS = _histogram(
    "rocketmq_rpc_latency_milliseconds",
    "Time from a request to its response",
    "protocol_type",
    "request_code",
    "response_code",
    "is_long_polling",
    "result",
    also="rocketmq_rpc_latency",
)

# Our own metrics.

BUILD = _gauge("escrowmq_build_info", "Always 1; the labels name the version", "version", "python")
IS_READY = _gauge(
    "escrowmq_ready", "1 if the broker serves; 0 while the store recovers, or after it failed"
)
UPTIME = _gauge("escrowmq_uptime_seconds", "Time since the broker began to serve")
RECOVERY = _gauge("escrowmq_recovery_seconds", "Duration of the store's recovery at the start")
REPLAYED = _gauge("escrowmq_recovery_replayed_bytes", "Bytes of the log that the recovery read")
CUT = _gauge("escrowmq_recovery_cut_bytes", "Bytes of a torn tail that were cut off")
UNDECIDED = _gauge("escrowmq_undecided_transactions", "Transactions without a decision")
OLDEST = _gauge(
    "escrowmq_oldest_undecided_seconds",
    "Age of the oldest undecided transaction; 0 if there is none",
)
UNREACHABLE = _gauge(
    "escrowmq_undecided_without_producer",
    "Undecided transactions that only a producer can"
    " answer for, with no producer of the group online",
)
PARKED = _gauge("escrowmq_parked_transactions", "Parked transactions, which wait for an operator")
PARKED_TOTAL = _counter("escrowmq_parked_total", "Transactions parked")
RESUMED_TOTAL = _counter("escrowmq_resumed_total", "Transactions resumed")
DROPPED_TOTAL = _counter(
    "escrowmq_delayed_dropped_total",
    "Delayed messages whose topic was deleted before they were due; they are never delivered",
)
DECISIONS = _counter(
    "escrowmq_decisions_total",
    "Transactions decided, by the producer itself, its answer to a check, a round of the broker "
    "or the pipeline (settle), the batch of a Spark sink, or a person (hand)",
    "source",
    "decision",
)
CONTRADICTIONS = _counter(
    "escrowmq_contradictions_total",
    "Requests for the opposite of a transaction's decision",
)
CHECKS = _counter("escrowmq_checks_sent_total", "Back-checks sent to producers")
ANSWERS = _counter("escrowmq_check_answers_total", "Answers to back-checks", "answer")
VERDICTS = _counter(
    "escrowmq_verdicts_total",
    "Verdicts of pipelines and of the broker's own rounds, by outcome",
    "outcome",
)
CHECKER = _gauge(
    "escrowmq_checker",
    "1 for the process that checks undecided transactions, else 0: broker, pipeline or none",
    "checker",
)
ROUNDS = _counter("escrowmq_check_rounds_total", "The broker's own check rounds", "result")
ROUND_AGE = _gauge(
    "escrowmq_check_round_age_seconds",
    "Time since the broker's own last round ended; 0 if there was none",
)
ROUND_SECONDS = _gauge("escrowmq_check_round_seconds", "Duration of the broker's own last round")
ROUND_OUTCOMES = _counter(
    "escrowmq_check_round_outcomes_total",
    "Due transactions in the broker's own rounds, by what was done or why not; those that stay due "
    "count in each round",
    "outcome",
)
CHECKS_STALLED = _gauge(
    "escrowmq_checks_stalled_seconds",
    "Time without a successful own round, once it is more than two check intervals, while the "
    "broker checks and a transaction is old enough for a check; else 0",
)
FLUSHES = _histogram("escrowmq_flush_seconds", "Time to flush a batch to disk")
INBOX = _gauge("escrowmq_inbox_commands", "Commands that wait for the writer", "lane")
INBOX_BYTES = _gauge("escrowmq_inbox_bytes", "Bytes of the messages in these commands")
DISK_FREE = _gauge("escrowmq_disk_free_bytes", "Free bytes on the store's disk")
DISK_LEVEL = _gauge(
    "escrowmq_disk_level",
    "What the disk lacks room for: 0 nothing, 1 messages, 2 also decisions, 3 everything",
)
CLOCK_GAP = _gauge(
    "escrowmq_clock_gap_seconds",
    "How far the machine's clock is ahead of store time; below 0, behind",
)
CLOCK_DOUBTFUL = _gauge(
    "escrowmq_clock_doubtful", "1 while an operator should check the machine's clock"
)
CLOCK_SYNCHRONIZED = _gauge(
    "escrowmq_clock_synchronized", "1 if the kernel reports that its clock is synchronized"
)
DELETION_WAITS = _gauge(
    "escrowmq_deletion_waits", "1 while the clock's state stops deletion by age"
)
DISK_RESERVE = _gauge(
    "escrowmq_disk_reserve_bytes", "Bytes of the reserve file, which count as free"
)
RETENTION_WAITS = _gauge(
    "escrowmq_retention_waits",
    "1 for what retention waits for, else 0: room on the disk, decisions, permission to delete",
    "reason",
)
RETENTION_MISSING = _gauge(
    "escrowmq_retention_missing_bytes",
    "Bytes of disk space that retention waits for; 0 if it does not wait",
)
RETENTION_SEGMENTS = _counter(
    "escrowmq_retention_segments_total", "Segments of the log that retention has deleted"
)
RETENTION_CARRIED = _counter(
    "escrowmq_retention_carried_total", "Messages that retention carried forward"
)
STATES_FOLLOW = _gauge(
    "escrowmq_state_store_follows",
    "1 while the state store follows the log, 0 while it is away or catching up",
    "store",
)
STATES_LAG = _gauge(
    "escrowmq_state_store_lag_rows", "Changes of transactions that the state store has not seen"
)
STATES_LOW_WATER = _gauge(
    "escrowmq_state_store_low_water",
    "Half offset before which all is decided, as the state store says; -1 if it was not asked",
)
STATES_DISAGREED = _counter(
    "escrowmq_state_store_disagreements_total",
    "Records of the state store that differed from the log, which won",
)
UNDECIDED_BYTES = _gauge(
    "escrowmq_undecided_bytes", "Bytes of messages that are undecided, parked or not yet due"
)
RETENTION_BYTES = _gauge(
    "escrowmq_retention_bytes", "The setting store.retention_bytes; 0 if there is no limit"
)
PIPELINE_AWAY = _gauge(
    "escrowmq_pipeline_away_seconds",
    "Time since a pipeline was last attached; 0 if one is attached or none is expected",
)
LAST_VERDICT = _gauge(
    "escrowmq_last_verdict_timestamp_seconds", "Time of the last verdict; 0 if there was none"
)
LEDGER_REACHABLE = _gauge(
    "escrowmq_ledger_reachable",
    "1 if a pipeline or the broker reaches this ledger, else 0; without a UUID if its database "
    "never told it",
    "ledger",
    "ledger_uuid",
)
LEDGER_SUCCEEDED = _gauge(
    "escrowmq_ledger_last_success_timestamp_seconds",
    "Time when a pipeline or the broker last reached this ledger; 0 if it never did",
    "ledger",
    "ledger_uuid",
)
LEDGER_UNDECIDED = _gauge(
    "escrowmq_undecided_without_ledger",
    "Undecided transactions that name a ledger which neither a pipeline nor the broker reaches; 0 "
    "without a report",
)
COMPARED = _gauge(
    "escrowmq_comparison_timestamp_seconds",
    "Time of the pipeline's last comparison of half and op records with the state store; 0 if "
    "there was none",
)
COMPARED_DIFFERENCES = _gauge(
    "escrowmq_comparison_differences", "Differences that this comparison found and that still hold"
)
COMPARED_OPEN = _gauge(
    "escrowmq_comparison_open_requests", "Undecided requests in the comparison's checkpoint"
)
COMPARED_BEHIND = _gauge(
    "escrowmq_comparison_behind_bytes", "Bytes of the log that the comparison has not read"
)
BACKGROUND = _counter(
    "escrowmq_background_failures_total", "Failures of the broker's periodic work", "work"
)
BACKGROUND_NOW = _gauge(
    "escrowmq_background_failures_in_a_row",
    "Consecutive failures of the work; 0 after a success",
    "work",
)
ALERTS_FIRING = _gauge(
    "escrowmq_alert_firing", "1 for an alert that is active and was sent", "alert"
)
ALERT_NOTICES = _counter(
    "escrowmq_alert_notices_total", "Notices of alerts: sent, failed or dropped", "outcome"
)
BACKUP_LAST_GOOD = _gauge(
    "escrowmq_backup_last_good_timestamp_seconds",
    "Time of the last backup that was restored and checked; 0 if there is none",
)
BACKUP_FAILURES = _gauge(
    "escrowmq_backup_failures_in_a_row", "Scheduled backups that failed since the last good one"
)
BACKUP_OVERDUE = _gauge(
    "escrowmq_backup_overdue_seconds", "Time by which a good backup is overdue; 0 if it is not"
)
LIMITS = _counter(
    "escrowmq_limits_reached_total", "How often a limit of connections was reached", "limit"
)
NAMES = _gauge("escrowmq_names", "Names that are kept", "kind")
NAMES_MAX = _gauge("escrowmq_names_max", "Limit on the names of a kind", "kind")
EXPIRED = _counter("escrowmq_names_expired_total", "Unused names that expired", "kind")
CONNECTIONS = _gauge("escrowmq_connections", "Open connections")
CONNECTION_BYTES = _gauge(
    "escrowmq_connection_bytes",
    "Bytes buffered for the broker, or for a peer that reads slowly",
    "kind",
)
GROUPS_PAUSED = _gauge("escrowmq_groups_paused", "Consumer groups that are paused")
PULLS = _gauge("escrowmq_pulls_waiting", "Pulls that wait for a message")
POPS = _gauge("escrowmq_pops_waiting", "Pops that wait for a message")
POP_IN_FLIGHT = _gauge(
    "escrowmq_pop_messages_in_flight", "Messages delivered by pop but not acknowledged"
)
REDELIVERED = _counter(
    "escrowmq_pop_redeliveries_total",
    "Messages delivered again by pop, because they were not acknowledged in time",
    "consumer_group",
    "topic",
)
REQUESTS = _counter(
    "escrowmq_requests_total", "Requests answered, by response code", "request", "outcome"
)
REFUSALS = _counter("escrowmq_refusals_total", "Requests refused, by the error's code", "error")
SCRAPE = _gauge("escrowmq_scrape_seconds", "Time to make the previous metrics page")
LEFT_OUT = _gauge(
    "escrowmq_lines_left_out",
    "Lines that this page leaves out because of its limit",
    "metric",
)
MEMORY = _gauge("process_resident_memory_bytes", "Memory of the process")
CPU = _counter("process_cpu_seconds_total", "Processor time of the process")
FILES = _gauge("process_open_fds", "Open files of the process, connections included")
STARTED = _gauge("process_start_time_seconds", "Time when the broker began to serve")

METRICS: tuple[Metric, ...] = tuple(one for one in globals().values() if isinstance(one, Metric))
"""All metrics, in the order of this module."""

NOT_GIVEN: dict[str, str] = {
    "rocketmq_storage_dispatch_behind_bytes": "queue offsets are written with the message",
    "rocketmq_topic_create_execution_time": "topics are rows of a small table",
    "rocketmq_consumer_group_create_execution_time": "so are groups",
    "rocketmq_timer_*": "there is no timer wheel; see rocketmq_timing_messages",
    "rocketmq_delay_message_latency": "the same",
    "rocketmq_pop_*": "they are about its revive topic; see `escrowmq_pop_*`",
    "rocketmq_rocksdb_*": "there is no RocksDB",
    "rocketmq_tiered_store_*": "the lake is written by the pipeline, which has its own page",
    "rocketmq_proxy_up": "there is no proxy",
}
"""Metrics of a RocketMQ broker that ours lacks, and why."""
