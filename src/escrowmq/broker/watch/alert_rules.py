"""Alert conditions of a broker, and when a notice is due. This module does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from escrowmq.broker.native.status import BrokerStatus

FIRING, RESOLVED = "firing", "resolved"
PIPELINE_STARTS_MS_MAX = 120_000
"""A pipeline may take this long to start. Until then only the status shows its absence."""


CERTIFICATE_MS_MIN = 30 * 86_400_000
"""A certificate should be valid for at least this long; Let's Encrypt renews at the same age."""


class Alert(NamedTuple):
    """One kind of alert."""

    #: 0 while the condition does not hold. If ``counts_events``, a larger value is a new event.
    value: Callable[[BrokerStatus], int]
    summary: str
    advice: str
    #: The value counts events: each increase causes a notice, even while the alert holds.
    counts_events: bool = False


def _background_failures(told: BrokerStatus) -> int:
    return sum(work.failures_in_a_row > 0 for work in told.background_failed)


def _exceeds_retention(told: BrokerStatus) -> int:
    return int(0 < told.retention_bytes < told.undecided_bytes)


def _expires(told: BrokerStatus) -> int:
    at_ms = told.tls_expires_at_ms
    return int(0 < at_ms < told.wall_ms + CERTIFICATE_MS_MIN)


def _pipeline_away_ms(told: BrokerStatus) -> int:
    if not told.pipeline_away_since_ms:
        return 0
    away_ms = told.now_ms - told.pipeline_away_since_ms
    return away_ms if away_ms > PIPELINE_STARTS_MS_MAX else 0


ALERTS: Mapping[str, Alert] = {
    "undecided_too_old": Alert(
        lambda told: told.oldest_undecided_age_ms,
        "the oldest undecided transaction is too old; the value is its age in milliseconds",
        "escrowmq txn list, then escrowmq txn explain",
    ),
    "nobody_to_ask": Alert(
        lambda told: told.undecided_without_producer,
        "transactions are undecided, and no producer of their group is online",
        "start their producers, or see escrowmq txn list --nobody-online",
    ),
    "parked": Alert(
        lambda told: told.parked,
        "transactions are parked and wait for a person",
        "escrowmq txn list --states parked, then commit, rollback or resume each",
        counts_events=True,
    ),
    "contradiction": Alert(
        lambda told: told.contradictions,
        "a client asked for the opposite of a decision",
        "the broker's log names the transactions; escrowmq audit compares everything",
        counts_events=True,
    ),
    "pipeline_away": Alert(
        _pipeline_away_ms,
        "no pipeline is attached, although one is expected; the value is milliseconds",
        "start escrowmq up or escrowmq pipeline",
    ),
    "checks_stalled": Alert(
        lambda told: told.checks_stalled_ms,
        "the broker checks, and its rounds fail or do not end; the value is milliseconds",
        "escrowmq status shows the error of the last round; the broker's log has more",
    ),
    "ledger_unreachable": Alert(
        lambda told: told.undecided_without_ledger,
        "transactions are undecided whose ledger neither a pipeline nor the broker reaches",
        "escrowmq status names the ledger and the error; escrowmq txn explain says what to do",
    ),
    "state_store_differs": Alert(
        lambda told: told.compared_differences,
        "the state store contradicts half and op records; the value is the number of differences",
        "escrowmq status shows the first one; escrowmq audit compares everything",
        counts_events=True,
    ),
    "state_store_away": Alert(
        lambda told: int(told.state_store_state in {"away", "refused"}),
        "the state store cannot follow the log, and new half messages are refused",
        "escrowmq status shows the error; the broker connects again by itself",
    ),
    "state_store_disagreed": Alert(
        lambda told: told.state_store_disagreed,
        "the state store differed from the log, which won",
        "find what else writes to the state store; the broker's log has the number of records",
        counts_events=True,
    ),
    "disk_full": Alert(
        lambda told: int(told.disk != "all"),
        "the disk has too little room, and the broker refuses new messages",
        "make room on the broker's disk",
    ),
    "retention_waits": Alert(
        lambda told: int(told.retention.startswith("waits_for_")),
        "old messages cannot be deleted",
        "escrowmq status says what retention waits for",
    ),
    "undecided_exceed_retention": Alert(
        _exceeds_retention,
        "undecided messages alone are more than store.retention_bytes",
        "get undecided transactions decided, or raise store.retention_bytes",
    ),
    "clock_doubtful": Alert(
        lambda told: int(told.is_clock_doubtful),
        "the machine's clock may be wrong",
        "escrowmq clock show; set the clock right, or escrowmq clock confirm",
    ),
    "names_near_limit": Alert(
        lambda told: int(bool(told.names_near)),
        "topics, groups or other names are near their limit",
        "raise limits.KIND_max, or find what makes new names",
    ),
    "background_fails": Alert(
        _background_failures,
        "periodic work of the broker fails",
        "the broker's log has the error; escrowmq status -o json names the work",
    ),
    "backup_failed": Alert(
        lambda told: told.backup_failures_in_a_row,
        "scheduled backups fail, or their restore check does",
        "escrowmq status shows the reason; correct it, and the broker tries again",
    ),
    "backup_overdue": Alert(
        lambda told: told.backup_overdue_ms,
        "the last good backup is too old; the value is milliseconds beyond its time",
        "check with escrowmq status whether backups run",
    ),
    "certificate_expires": Alert(
        _expires,
        "the broker's TLS certificate expires within 30 days, or has expired",
        "put new files in the place of tls.cert_file and tls.key_file; no restart is needed",
    ),
    "tls_not_reloaded": Alert(
        lambda told: int(bool(told.tls_error)),
        "the broker cannot use its new TLS files and keeps the last good ones",
        "escrowmq status shows the reason; correct the files, and the broker loads them",
    ),
}


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Notice of an alert; its fields are the JSON that the web server and the program get."""

    version: int = 1
    alert: str
    #: `firing` or `resolved`.
    state: str
    #: An earlier notice reported this alert, and it still holds.
    is_repeated: bool = False
    broker: str
    cluster: str
    summary: str
    advice: str
    value: int
    #: Store time when the alert began, and store time of this notice.
    since_ms: int
    at_ms: int


class _Held(msgspec.Struct):
    """State of an alert that holds."""

    since_ms: int
    #: When its last notice was made; None before the first one.
    told_at_ms: int | None = None
    told_value: int = 0


class AlertStates:
    """Tracks which alerts hold and which have a notice: one each, until resolved or repeated."""

    def __init__(self, names: Collection[str], *, hold_ms: int, repeat_ms: int) -> None:
        self._names = [name for name in ALERTS if name in names]
        self._hold_ms = hold_ms
        self._repeat_ms = repeat_ms
        self._held: dict[str, _Held] = {}

    @property
    def firing(self) -> list[str]:
        """Alerts that have a notice and are not resolved."""
        return [name for name, held in self._held.items() if held.told_at_ms is not None]

    def look(self, told: BrokerStatus, *, undecided_age_ms: int) -> list[Notice]:
        """Return the notices that are due now."""
        notices = []
        for name in self._names:
            value = ALERTS[name].value(told)
            if name == "undecided_too_old" and value < undecided_age_ms:
                value = 0
            notice = self._step(name, value, told)
            if notice is not None:
                notices.append(notice)
        return notices

    def _step(self, name: str, value: int, told: BrokerStatus) -> Notice | None:
        now_ms, held = told.now_ms, self._held.get(name)
        if value <= 0:
            self._held.pop(name, None)
            if held is None or held.told_at_ms is None:
                return None
            return _notice(name, RESOLVED, told, 0, held)
        if held is None:
            held = self._held[name] = _Held(since_ms=now_ms)
        if held.told_at_ms is None:
            if now_ms - held.since_ms < self._hold_ms and not ALERTS[name].counts_events:
                return None
            return self._tell(name, held, value, told, is_repeated=False)
        grew = ALERTS[name].counts_events and value > held.told_value
        is_due = self._repeat_ms and now_ms - held.told_at_ms >= self._repeat_ms
        if grew or is_due:
            return self._tell(name, held, value, told, is_repeated=not grew)
        held.told_value = min(held.told_value, value)
        return None

    def _tell(
        self, name: str, held: _Held, value: int, told: BrokerStatus, *, is_repeated: bool
    ) -> Notice:
        held.told_at_ms, held.told_value = told.now_ms, value
        return _notice(name, FIRING, told, value, held, is_repeated=is_repeated)


def _notice(
    name: str, state: str, told: BrokerStatus, value: int, held: _Held, *, is_repeated: bool = False
) -> Notice:
    alert = ALERTS[name]
    return Notice(
        alert=name,
        state=state,
        is_repeated=is_repeated,
        broker=told.broker,
        cluster=told.cluster,
        summary=alert.summary,
        advice=alert.advice,
        value=value,
        since_ms=held.since_ms,
        at_ms=told.now_ms,
    )
