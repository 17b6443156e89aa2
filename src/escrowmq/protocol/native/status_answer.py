"""Answer to STATUS, the longest header: one field for each fact about a broker.

The reference page shows a field's comment. A new field gets a default, because older releases do
not send it.
"""

from __future__ import annotations

from escrowmq.protocol.native.headers import NativeAnswer
from escrowmq.protocol.remoting.headers import Int32, Int64


class StatusAnswer(NativeAnswer, frozen=True, kw_only=True):
    """STATUS."""

    broker: str
    cluster: str
    broker_version: str
    broker_address: str
    started_at_ms: Int64
    #: Transactions that are neither decided nor parked.
    undecided: Int64
    #: Age of the oldest of them; 0 if there is none.
    oldest_undecided_age_ms: Int64
    #: Those of them without a ledger and without an online producer in their group.
    undecided_without_producer: Int64
    #: Parked transactions, which wait for an operator to decide.
    parked: Int64
    #: Back-checks sent to producers since the start.
    checks_sent: Int64
    #: Transactions with a request for the opposite of their decision since the start.
    contradictions: Int64
    #: When the pipeline last sent verdicts; 0 for never.
    last_verdict_at_ms: Int64
    #: Since when the pipeline has sent neither verdicts nor AWAIT_DUE; 0 if it is not away.
    pipeline_away_since_ms: Int64
    connections: Int32
    #: Group members, each counted once per group.
    producers_online: Int32
    consumers_online: Int32
    pulls_waiting: Int32
    topics: Int32
    queues: Int32
    #: Readable range of log offsets: start, and exclusive end.
    log_start: Int64
    log_end: Int64
    #: Range of known half offsets: start, and exclusive end.
    half_start: Int64
    half_end: Int64
    #: The back-check policy: settings of the section `[transaction]`.
    check_after_ms: Int64
    check_interval_ms: Int64
    check_backoff: float
    check_interval_max_ms: Int64
    checks_max: Int32
    park_after_ms: Int64
    #: `fsync` or `os`. Older releases omit this field and all fields after it.
    durability: str = ""
    #: What the free disk space allows: `all`, `no_messages`, `no_decisions` or `nothing`.
    disk: str = ""
    disk_free_bytes: Int64 = 0
    #: Median duration of the last 1000 flushes, and their 99th percentile.
    flush_ms_median: float = 0.0
    flush_ms_p99: float = 0.0
    #: The process's limit of open files.
    open_files_max: Int64 = 0
    #: The store's id and its epochs, each with its log offset, half offset and store time:
    #: `STORE/ID:LOG:HALF:TIME,…`.
    lineage: str = ""
    #: Why consumer offsets were lost before this start; empty if they were not.
    offsets_lost: str = ""
    #: Comma-separated topics of which only the queues were left at this start.
    topics_found: str = ""
    #: Kinds of names that use 80 % or more of their limit, with the counts; empty if none does.
    names_near: str = ""
    #: The settings `transaction.checked_by` and `transaction.after_last_check`.
    checked_by: str = "pipeline"
    after_last_check: str = "park"
    #: Which process checks undecided transactions now: `broker`, `pipeline` or `none`; and since
    #: when. Older releases never check by themselves.
    checker: str = "pipeline"
    checker_since_ms: Int64 = 0
    #: When the broker's own last round ended (0: never), how long it took, and what it did: as
    #: `asked=3 committed=1`, without counts that are 0.
    round_ended_at_ms: Int64 = 0
    round_took_ms: Int64 = 0
    round_did: str = ""
    #: Why the broker's own last round failed; empty if it did not.
    round_error: str = ""
    #: The machine's wall clock.
    wall_ms: Int64 = 0
    #: Whether the kernel reports the wall clock as synchronized.
    is_clock_synchronized: bool = False
    #: How far the wall clock is ahead of store time (`nowMs`); negative if behind.
    clock_gap_ms: Int64 = 0
    #: `none`, `ahead` (without confirmation that the wall clock is right) or `behind`.
    clock_gap: str = ""
    #: Whether a person should check the clock.
    is_clock_doubtful: bool = False
    #: Why the broker deletes nothing for its age (empty: it deletes), and how long, if known.
    deletion_waits: str = ""
    deletion_waits_ms: Int64 = 0
    #: State of retention: `idle`, `working`, `waits_for_room`, `waits_for_decisions` or
    #: `waits_for_permission`.
    retention: str = ""
    #: Disk space that retention lacks.
    retention_missing_bytes: Int64 = 0
    #: Bytes of messages that are undecided, parked or not yet due. They do not count against
    #: `retentionBytes`, the setting `store.retention_bytes`.
    undecided_bytes: Int64 = 0
    retention_bytes: Int64 = 0
    #: Part of the free bytes that the reserve holds.
    disk_reserve_bytes: Int64 = 0
    #: Pipelines whose ledger reports are valid now; LIST_LEDGERS lists the reported ledgers.
    pipelines_reporting: Int32 = 0
    #: Reported ledgers that their pipeline cannot reach.
    ledgers_unreachable: Int32 = 0
    #: Undecided transactions that name a ledger which no pipeline reaches; 0 without a report.
    undecided_without_ledger: Int64 = 0
    #: Paused consumer groups.
    groups_paused: Int64 = 0
    #: Pops that wait for a message, and messages in flight to groups that pop.
    pops_waiting: Int32 = 0
    pop_in_flight: Int64 = 0
    #: Whether the broker sends notices of alerts: `on` or `off`; empty from an older broker.
    alerts: str = ""
    #: Comma-separated alerts that are firing and were sent.
    alerts_firing: str = ""
    #: Notices since the start: sent, failed and dropped.
    alerts_sent: Int64 = 0
    alerts_failed: Int64 = 0
    alerts_dropped: Int64 = 0
    alerts_last_error: str = ""
    #: Scheduled backups: `off`, `idle` or `running`. The other fields describe the last good backup
    #: (0: never), the next one, the failures since then, and how long a good one is overdue.
    backup: str = ""
    backup_last_good: str = ""
    backup_last_good_at_ms: Int64 = 0
    backup_last_good_bytes: Int64 = 0
    backup_next_at_ms: Int64 = 0
    backup_failures_in_a_row: Int64 = 0
    backup_last_failed_at_ms: Int64 = 0
    backup_last_error: str = ""
    backup_overdue_ms: Int64 = 0
    #: The last comparison with the state store, as in LIST_COMPARISON; the time is 0 before it.
    compared_at_ms: Int64 = 0
    compared_outcome: str = ""
    compared_decided_before: Int64 = 0
    compared_log_offset: Int64 = 0
    compared_open: Int64 = 0
    compared_differences: Int64 = 0
    compared_first_difference: str = ""
    compared_state_store: str = ""
    #: The state store: its name, what it does, changes it has not seen, differences, the error.
    state_store: str = ""
    state_store_state: str = ""
    state_store_lag: Int64 = 0
    state_store_disagreed: Int64 = 0
    state_store_error: str = ""
    #: Every half message before this one is decided, says the state store; -1 if it was not asked.
    state_store_low_water: Int64 = -1
    #: TLS: `off`, `optional` or `required`, empty from an older broker; when the certificate
    #: expires on the wall clock (0: there is none); loads of changed files, and why the last one
    #: failed.
    tls: str = ""
    tls_expires_at_ms: Int64 = 0
    tls_reloads: Int64 = 0
    tls_error: str = ""
