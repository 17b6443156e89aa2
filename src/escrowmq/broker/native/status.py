"""Status of a broker: one answer for probes, tools and people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from escrowmq.broker.native.ledgers import LedgersSeen, ledgers_seen
from escrowmq.broker.native.state_status import status_of_comparison, status_of_states
from escrowmq.broker.periodic.background import Failed, PeriodicTasks
from escrowmq.broker.periodic.scheduled_backups import BackupState, ScheduledBackups
from escrowmq.broker.state.capacity import Capacities, Capacity
from escrowmq.broker.state.catalog_opening import CatalogFound
from escrowmq.protocol.message.limits import SHOWN_CHARS_MAX
from escrowmq.protocol.native.ledgers import LedgerRow
from escrowmq.store.reading.undecided_counts import standing
from escrowmq.store.table.undecided import prepared_by_origin

if TYPE_CHECKING:
    from escrowmq.broker.checks.checking import Checking
    from escrowmq.broker.checks.contradictions import Contradictions
    from escrowmq.broker.checks.leading import Leadership
    from escrowmq.broker.checks.rounds import SettleRounds
    from escrowmq.broker.config import Identity
    from escrowmq.broker.native.comparisons import Comparisons
    from escrowmq.broker.net.limits import ConnectionLimits
    from escrowmq.broker.net.tls import ServerTls
    from escrowmq.broker.pop.service import PopService
    from escrowmq.broker.rocketmq.pulling import Pulling
    from escrowmq.broker.state.client_links import ClientLink
    from escrowmq.broker.state.clients import Clients
    from escrowmq.broker.state.groups import Groups
    from escrowmq.broker.state.ledger_reports import LedgerReports, PipelineSigns
    from escrowmq.broker.watch.alerting import Alerting
    from escrowmq.broker.write.broker_clock import BrokerClock
    from escrowmq.broker.write.retaining import Retaining
    from escrowmq.store.recovery.recovery import RecoveryResult
    from escrowmq.store.store import Store

OUR_RELEASE = version("escrowmq")
"""Read once, because the lookup reads files."""

PIPELINE_SILENT_MS_MAX = 120_000
"""An expected pipeline that sends nothing for longer than this is away."""


LEDGERS_SHOWN = 100
"""Most ledgers that the status lists."""


class StartFindings(NamedTuple):
    """How long the store took to recover, and what was found at the start."""

    recovery_s: float
    store: RecoveryResult
    #: What was rebuilt of topics, groups and offsets.
    catalog: CatalogFound


@dataclass(slots=True, kw_only=True)
class Vitals:
    """Facts that the server around a broker knows and the broker itself does not."""

    background: PeriodicTasks
    name_address: str = ""
    http_address: str = ""
    connections: Callable[[], int] = int
    #: Limits that all connections share.
    limits: ConnectionLimits
    tls: ServerTls
    found: StartFindings
    #: None if they are off.
    alerting: Alerting | None = None
    backups: ScheduledBackups | None = None


class StatusParts(Protocol):
    """Parts of a broker that its status shows."""

    identity: Identity
    store: Store
    clock: BrokerClock
    clients: Clients[ClientLink]
    groups: Groups
    checking: Checking
    pulling: Pulling
    popping: PopService
    retaining: Retaining
    capacities: Capacities
    contradictions: Contradictions
    ledger_reports: LedgerReports
    comparisons: Comparisons
    signs: PipelineSigns
    leadership: Leadership
    rounds: SettleRounds
    vitals: Vitals


class Ledger(LedgerRow, frozen=True, array_like=False):
    """A row of LIST_LEDGERS as an object; times are store time."""


class BrokerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a broker; times are store time."""

    is_ready: bool
    #: Why it is not ready; empty if it is.
    reason: str
    broker: str
    cluster: str
    version: str
    name_address: str
    broker_address: str
    http_address: str
    now_ms: int
    started_at_ms: int
    uptime_ms: int
    #: The machine's wall clock, whether the kernel vouches for it, and how far it is ahead of store
    #: time (negative: behind).
    wall_ms: int
    is_clock_synchronized: bool
    clock_gap_ms: int
    #: `none`, `ahead` (and no source vouches for the wall clock) or `behind`; and whether a person
    #: should look at it.
    clock_gap: str
    is_clock_doubtful: bool
    #: Why nothing is deleted by age (empty: it is), and for how long, as far as that is known.
    deletion_waits: str
    deletion_waits_ms: int
    #: Transactions that are neither decided nor parked, and the age of the oldest.
    undecided: int
    oldest_undecided_age_ms: int
    #: Those of them that only a producer can answer for while none of its group is online.
    undecided_without_producer: int
    #: Parked transactions, which wait for an operator.
    parked: int
    #: Decided transactions for which the opposite decision came later, since the start.
    contradictions: int
    connections: int
    #: Members of groups, each counted once per group.
    producers_online: int
    consumers_online: int
    pulls_waiting: int
    log_start: int
    log_end: int
    log_flushed: int
    durability: str
    #: When a pipeline last sent a verdict (0: never), and since when it is away (0: it is not, or
    #: none is expected).
    last_verdict_at_ms: int
    pipeline_away_since_ms: int
    #: Which process checks undecided transactions: `broker`, `pipeline` or `none`; since when; and
    #: the setting that says so.
    checker: str
    checker_since_ms: int
    checked_by: str
    #: When the broker's own last round ended (0: never), how long it took, what it did, and why it
    #: failed (empty: it did not).
    round_ended_at_ms: int
    round_took_ms: int
    round_did: str
    round_error: str
    #: For how long the broker's own rounds have failed or not ended, although it checks and
    #: something is due; 0 if they succeed.
    checks_stalled_ms: int
    background_failed: list[Failed]
    #: What the disk has room for: `all`, `no_messages`, `no_decisions` or `nothing`; and its free
    #: bytes, including the reserve.
    disk: str
    disk_free_bytes: int
    #: What was rebuilt at the start: why consumer offsets are lost, where a damaged meta.db is now,
    #: and topics of which only queues were left.
    catalog: CatalogFound
    #: Bytes that the reserve holds: 0 if it had to be released, or cannot be made yet.
    disk_reserve_bytes: int
    #: State of retention: `idle`, `working`, or what it waits for: `waits_for_room`,
    #: `waits_for_decisions`, `waits_for_permission`; and how much room is missing.
    retention: str
    retention_missing_bytes: int
    #: Bytes of messages that are undecided, parked or not yet due, which do not count against the
    #: setting `store.retention_bytes`; and that setting.
    undecided_bytes: int
    retention_bytes: int
    #: How often each limit of connections was reached, since the start.
    limits_reached: dict[str, int]
    #: Number of names of each kind, and its limit.
    names: list[Capacity]
    #: The kinds of names whose limit is near, as text; empty if none is.
    names_near: str
    #: Ledgers that a pipeline or the broker reported, or undecided transactions name. Reported ones
    #: come first, and the unreachable ones first among them.
    ledgers: list[Ledger]
    #: Pipelines whose reports about ledgers are still valid.
    pipelines_reporting: int
    #: Reported ledgers that neither a pipeline nor the broker reaches.
    ledgers_unreachable: int
    #: Undecided transactions whose ledger no pipeline and no broker reaches; 0 without a report.
    undecided_without_ledger: int
    #: Paused consumer groups.
    groups_paused: int
    #: Pops that wait for a message, and messages in flight to groups that pop.
    pops_waiting: int
    pop_in_flight: int
    #: Notices of alerts: `off` or `on`.
    alerts: str
    #: Firing alerts with a notice sent, separated by commas.
    alerts_firing: str
    #: Notices since the start, and the last failure; empty if there was none.
    alerts_sent: int
    alerts_failed: int
    alerts_dropped: int
    alerts_last_error: str
    #: Scheduled backups: `off`, `idle` or `running`; the last good one, which was restored and
    #: checked, when it was made (0: never), and its size; when the next one is due.
    backup: str
    backup_last_good: str
    backup_last_good_at_ms: int
    backup_last_good_bytes: int
    backup_next_at_ms: int
    #: Failures since the last good one, when the last one failed and why; for how long a good one
    #: has been overdue (0: it is not).
    backup_failures_in_a_row: int
    backup_last_failed_at_ms: int
    backup_last_error: str
    backup_overdue_ms: int
    #: TLS: `off`, `optional` or `required`; when the broker's certificate expires on the wall clock
    #: (0: it has none); how often changed files were loaded, and why the last ones could not be.
    tls: str
    tls_expires_at_ms: int
    tls_reloads: int
    tls_error: str
    #: The pipeline's last comparison of half and op records with the state store, as in
    #: LIST_COMPARISON; the time is 0 before the first one.
    compared_at_ms: int
    compared_outcome: str
    compared_decided_before: int
    compared_log_offset: int
    compared_open: int
    compared_differences: int
    compared_first_difference: str
    compared_state_store: str
    #: The state store: `table`, `mapped` or `sql`; whether it `follows`, is `away`, `refused` or
    #: `catching_up`; changes that it has not seen; records that differed from the log; the error.
    state_store: str
    state_store_state: str
    state_store_lag: int
    state_store_disagreed: int
    state_store_error: str
    #: Every half message before this one is decided, says the state store; -1 if it was not asked.
    state_store_low_water: int


def status(broker: StatusParts) -> BrokerStatus:
    """Return the broker's current status."""
    store, vitals, clients = broker.store, broker.vitals, broker.clients
    prepared = prepared_by_origin(store.table)
    ledgers = _of_ledgers(ledgers_seen(store, broker.clock, broker.ledger_reports, prepared))
    now_ms = broker.clock.now_ms()
    stands = standing(store)
    oldest_at_ms = stands.oldest_undecided_at_ms
    clock, time, signs = broker.clock, broker.clock.time, broker.signs
    started_at_ms = now_ms - clock.uptime_ms
    names = broker.capacities.all()
    return BrokerStatus(
        is_ready=store.failure is None,
        reason="" if store.failure is None else str(store.finished()),
        broker=broker.identity.name,
        cluster=broker.identity.cluster,
        version=OUR_RELEASE,
        name_address=vitals.name_address,
        broker_address=broker.identity.address,
        http_address=vitals.http_address,
        now_ms=now_ms,
        started_at_ms=started_at_ms,
        uptime_ms=clock.uptime_ms,
        wall_ms=clock.wall_ms(),
        is_clock_synchronized=time.is_synchronized,
        clock_gap_ms=clock.wall_ms() - now_ms,
        clock_gap=time.gap.value,
        is_clock_doubtful=time.is_doubtful,
        deletion_waits=clock.deletion_waits,
        deletion_waits_ms=clock.deletion_waits_ms,
        undecided=stands.undecided,
        oldest_undecided_age_ms=0 if oldest_at_ms is None else max(now_ms - oldest_at_ms, 0),
        undecided_without_producer=broker.checking.unreachable_count(prepared),
        parked=stands.parked,
        contradictions=broker.contradictions.count,
        connections=vitals.connections(),
        producers_online=sum(map(clients.producer_count, clients.producer_groups())),
        consumers_online=sum(len(group.members) for group in clients.online_groups()),
        pulls_waiting=broker.pulling.polls.waiting,
        log_start=store.log.start,
        log_end=store.log.end,
        log_flushed=store.log.flushed,
        durability=store.config.durability,
        last_verdict_at_ms=(
            0 if signs.verdict_at_ms is None else clock.ago_ms(signs.verdict_at_ms)
        ),
        pipeline_away_since_ms=_away_since_ms(broker, now_ms) or 0,
        **_of_checks(broker),
        checks_stalled_ms=broker.rounds.stalled_ms(oldest_at_ms),
        background_failed=vitals.background.failed,
        disk=store.space.level.name.lower(),
        disk_free_bytes=store.space.free_bytes,
        catalog=vitals.found.catalog,
        disk_reserve_bytes=store.space.reserve.held,
        retention=broker.retaining.state,
        retention_missing_bytes=broker.retaining.missing_bytes,
        undecided_bytes=store.table.needed_bytes,
        retention_bytes=store.config.retention_bytes,
        limits_reached=dict(vitals.limits.counts),
        names=names,
        names_near=", ".join(str(one) for one in names if one.is_near),
        **ledgers,
        groups_paused=len(broker.groups.paused),
        pops_waiting=broker.popping.polls.waiting,
        pop_in_flight=broker.popping.places.in_flight,
        **_of_services(vitals),
        **status_of_comparison(broker.comparisons),
        **status_of_states(store),
    )


def _away_since_ms(broker: StatusParts, now_ms: int) -> int | None:
    """Return since when an expected pipeline is away; None if it is not away or not expected."""
    heard_at_ms = broker.signs.last_at_ms
    checked_by = broker.store.core.policy.checked_by
    is_expected = checked_by == "pipeline" or (checked_by == "auto" and heard_at_ms is not None)
    if not is_expected:
        return None
    if heard_at_ms is None:
        return now_ms - broker.clock.uptime_ms
    since_ms = broker.clock.ago_ms(heard_at_ms)
    return since_ms if now_ms - since_ms > PIPELINE_SILENT_MS_MAX else None


def _of_checks(broker: StatusParts) -> dict[str, Any]:
    leadership, last = broker.leadership, broker.rounds.last
    return {
        "checker": leadership.checker.value,
        "checker_since_ms": leadership.since_ms,
        "checked_by": leadership.policy.checked_by,
        "round_ended_at_ms": last.ended_at_ms,
        "round_took_ms": last.took_ms,
        "round_did": last.did_text,
        "round_error": last.error[:SHOWN_CHARS_MAX],
    }


def _of_ledgers(seen: LedgersSeen) -> dict[str, Any]:
    return {
        "ledgers": [Ledger(**msgspec.structs.asdict(row)) for row in seen.rows[:LEDGERS_SHOWN]],
        "pipelines_reporting": seen.pipelines,
        "ledgers_unreachable": sum(1 for row in seen.rows if row.name and not row.is_reachable),
        "undecided_without_ledger": seen.undecided_without_ledger,
    }


def _of_services(vitals: Vitals) -> dict[str, Any]:
    """Return what the status says about the server around the broker."""
    return {
        **_of_alerts(vitals.alerting),
        **_of_backups(vitals.backups),
        **vitals.tls.facts(),
    }


def _of_alerts(alerting: Alerting | None) -> dict[str, Any]:
    if alerting is None:
        none = dict.fromkeys(("alerts_sent", "alerts_failed", "alerts_dropped"), 0)
        return {**none, "alerts": "off", "alerts_firing": "", "alerts_last_error": ""}
    counts = alerting.counts
    return {
        "alerts": "on",
        "alerts_firing": ",".join(alerting.firing),
        "alerts_sent": counts.sent,
        "alerts_failed": counts.failed,
        "alerts_dropped": counts.dropped,
        "alerts_last_error": counts.last_error,
    }


def _of_backups(backups: ScheduledBackups | None) -> dict[str, Any]:
    said = BackupState() if backups is None else backups.said
    return {
        "backup": said.state,
        "backup_last_good": said.last_good,
        "backup_last_good_at_ms": said.last_good_at_ms,
        "backup_last_good_bytes": said.last_good_bytes,
        "backup_next_at_ms": 0 if backups is None else backups.next_at_ms,
        "backup_failures_in_a_row": said.failures_in_a_row,
        "backup_last_failed_at_ms": said.last_failed_at_ms,
        "backup_last_error": said.last_error,
        "backup_overdue_ms": 0 if backups is None else backups.overdue_ms,
    }
