"""``escrowmq status``: print the state of a broker."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from escrowmq.cli.admin.ledger_text import LedgersTold, ask_ledgers, ledger_line
from escrowmq.cli.asking import asking, at, duration
from escrowmq.cli.options import DEFAULT_BROKER, BrokerOption, Output, OutputOption
from escrowmq.cli.output import as_facts, human_bytes, print_item
from escrowmq.cli.shapes.ledger_shape import LedgerReportShape
from escrowmq.protocol.native.requests import NativeCode

if TYPE_CHECKING:
    from escrowmq.cli.shapes.broker_shapes import Shape
    from escrowmq.client.network.native_calls import NativeCalls
    from escrowmq.protocol.native.status_answer import StatusAnswer

LEDGERS_SHOWN = 10
COMPARED = frozenset({"", "compared", "is_table", "behind"})
"""Outcomes of the comparison with the state store that the status need not mention."""


class ReportedLag(NamedTuple):
    """Messages of a topic that a consumer group has not acknowledged, as the broker reports it."""

    messages: int = 0
    group: str = ""
    topic: str = ""


def largest_lag(calls: NativeCalls) -> ReportedLag:
    """Return the largest lag of any group in any topic."""
    lags: Counter[tuple[str, str]] = Counter()
    for row in calls.rows(NativeCode.LIST_OFFSETS):
        lags[row.group, row.topic] += row.lag
    for (group, topic), messages in lags.most_common(1):
        return ReportedLag(messages, group, topic)
    return ReportedLag()


def status(broker: BrokerOption = DEFAULT_BROKER, output: OutputOption = Output.TABLE) -> None:
    """Print a broker's state: undecided transactions, clients, disk."""
    with asking(broker) as calls:
        told = calls.call(NativeCode.STATUS).header
        lag = largest_lag(calls)
        ledgers = ask_ledgers(calls)
    print_item(raw(told, lag, ledgers), output, lambda: as_facts(facts(told, lag, ledgers)))


def raw(told: StatusAnswer, lag: ReportedLag, ledgers: LedgersTold) -> Shape:
    """Convert a broker's answer to the JSON shape; times stay in milliseconds."""
    from escrowmq.cli.shapes.status_shape import LEFT_OUT, RENAMED, StatusShape

    answered = {
        RENAMED.get(name, name): value
        for name, value in msgspec.structs.asdict(told).items()
        if name not in LEFT_OUT
    }
    return StatusShape(
        **answered,
        lag_max=lag.messages,
        lag_max_group=lag.group,
        lag_max_topic=lag.topic,
        ledgers=[LedgerReportShape.of(row) for row in ledgers.rows],
        ledgers_left_out=ledgers.left_out,
    )


def facts(
    told: StatusAnswer, lag: ReportedLag, ledgers: LedgersTold | None = None
) -> dict[str, str]:
    """Return the text lines for an operator, by name."""
    now_ms = told.now_ms
    undecided = f"{told.undecided}"
    if told.undecided:
        undecided += f", the oldest for {duration(told.oldest_undecided_age_ms)}"
    if told.undecided_without_producer:
        undecided += f", {told.undecided_without_producer} whose producers are all offline"
    if told.undecided_without_ledger:
        undecided += f", {told.undecided_without_ledger} WAIT for an unreachable ledger"
    return {
        "broker": f"{told.broker} at {told.broker_address}, version {told.broker_version}",
        "running": f"for {duration(now_ms - told.started_at_ms)}",
        "checks": checks_of(told),
        "pipeline": pipeline_of(told),
        **ledger_lines(ledgers or LedgersTold(), now_ms),
        "undecided": undecided,
        "comparison": comparison_of(told),
        "parked": str(told.parked) if not told.parked else f"{told.parked}: see escrowmq txn list",
        "contradictions": str(told.contradictions),
        "back-checks sent": str(told.checks_sent),
        "clients": (
            f"{told.producers_online} producers, {told.consumers_online} consumers, "
            f"{told.connections} connections"
        ),
        "topics": f"{told.topics}, with {told.queues} queues",
        "names": f"NEAR THE LIMIT: {told.names_near}" if told.names_near else "far from limits",
        "paused groups": paused_of(told),
        "alerts": alerts_of(told),
        "backup": backup_of(told),
        "TLS": tls_of(told),
        "lag": lag_of(lag),
        "state store": state_store_of(told),
        "disk": disk_of(told),
        "retention": retention_of(told),
        "flushes": flushes_of(told),
        "clock": f"{gap_of(told)}; deletion {deletion_of(told)}",
        "log": f"{human_bytes(told.log_end - told.log_start)}, up to offset {told.log_end}",
    }


def ledger_lines(told: LedgersTold, now_ms: int) -> dict[str, str]:
    """Return a line for each ledger that is configured or that an undecided transaction names."""
    if not told.is_reported:
        waiting = sum(row.undecided for row in told.rows)
        if not waiting:
            return {}
        return {"ledgers": f"{waiting} undecided name one; no pipeline has reported recently"}
    lines = {
        f"ledger {row.name or row.uuid}": ledger_line(row, now_ms, told.unnamed)
        for row in told.rows[:LEDGERS_SHOWN]
    }
    if len(told.rows) > LEDGERS_SHOWN:
        lines["ledgers"] = f"and {len(told.rows) - LEDGERS_SHOWN} more: see -o json"
    return lines


def comparison_of(told: StatusAnswer) -> str:
    """Describe the pipeline's last comparison of half and op records with the state store."""
    if not told.compared_at_ms:
        return "none so far: a pipeline makes it"
    ago = duration(told.now_ms - told.compared_at_ms)
    known = {"behind": ", still BEHIND", "open_limit": ", TOO MANY undecided to keep all"}
    outcome = known.get(told.compared_outcome, "")
    if told.compared_differences:
        found = f"{told.compared_differences} DIFFERENCES: {told.compared_first_difference}"
        return f"{ago} ago{outcome}: {found}"
    if told.compared_state_store not in COMPARED:
        outcome += f", {told.state_store} NOT COMPARED ({told.compared_state_store})"
    return (
        f"{ago} ago{outcome}: records and state store agree up to log offset "
        f"{told.compared_log_offset}; every half message before {told.compared_decided_before} "
        f"is decided, {told.compared_open} are open"
    )


def paused_of(told: StatusAnswer) -> str:
    """Describe how many consumer groups are paused."""
    return f"{told.groups_paused}: see escrowmq group list" if told.groups_paused else "none"


def alerts_of(told: StatusAnswer) -> str:
    """Describe the firing alerts, and whether the last notice was sent."""
    if told.alerts == "off":
        return "not watched: neither alerts.url nor alerts.command is set"
    firing = f"FIRING: {told.alerts_firing.replace(',', ', ')}" if told.alerts_firing else "none"
    if told.alerts_last_error:
        firing += f"; the last notice was NOT SENT: {told.alerts_last_error}"
    return firing


def tls_of(told: StatusAnswer) -> str:
    """Describe TLS: the mode, when the certificate expires, and whether new files failed."""
    if told.tls in {"", "off"}:
        return "off"
    now_ms = told.wall_ms or told.now_ms
    left_ms = told.tls_expires_at_ms - now_ms
    end = f"expires in {duration(left_ms)}" if left_ms > 0 else f"EXPIRED {duration(-left_ms)} ago"
    failed = f"; NEW FILES FAILED: {told.tls_error}" if told.tls_error else ""
    return f"{told.tls}, the certificate {end}{failed}"


def backup_of(told: StatusAnswer) -> str:
    """Describe the last good backup, and whether newer ones failed or are overdue."""
    if told.backup in {"", "off"}:
        return "not scheduled"
    good = "no good backup yet"
    if told.backup_last_good_at_ms:
        ago = duration(told.now_ms - told.backup_last_good_at_ms)
        good = f"the last good one is {ago} old: {told.backup_last_good}"
    if told.backup_failures_in_a_row:
        good += f"; {told.backup_failures_in_a_row} FAILED since: {told.backup_last_error}"
    elif told.backup_overdue_ms:
        good += f"; OVERDUE for {duration(told.backup_overdue_ms)}"
    return f"{good}; one runs now" if told.backup == "running" else good


def lag_of(lag: ReportedLag) -> str:
    """Describe the largest lag."""
    if not lag.messages:
        return "none: consumers have everything"
    return f"at most {lag.messages:,} messages, of group {lag.group} in topic {lag.topic}"


def disk_of(told: StatusAnswer) -> str:
    """Describe the free space on the broker's disk."""
    if not told.disk:
        return "unknown"
    free = f"{human_bytes(told.disk_free_bytes)} free"
    return free if told.disk == "all" else f"{free}, TOO LITTLE: {told.disk.replace('_', ' ')}"


def state_store_of(told: StatusAnswer) -> str:
    """Describe the state store, and whether it follows the log."""
    if not told.state_store_state:
        return "unknown"
    known = {
        "follows": "follows the log",
        "catching_up": "is being brought up to the log",
        "away": f"AWAY, half messages are refused: {told.state_store_error}",
        "refused": f"REFUSED, half messages are refused: {told.state_store_error}",
    }
    text = f"{told.state_store}: {known.get(told.state_store_state, told.state_store_state)}"
    if told.state_store_lag:
        text += f"; {told.state_store_lag:,} changes behind"
    if told.state_store_disagreed:
        text += f"; {told.state_store_disagreed:,} records DIFFERED from the log, which won"
    return text


def retention_of(told: StatusAnswer) -> str:
    """Describe what retention does or waits for."""
    if not told.retention:
        return "unknown"
    missing = human_bytes(told.retention_missing_bytes)
    known = {
        "waits_for_room": f"WAITS for {missing} of room on the disk",
        "waits_for_decisions": "WAITS until transactions are decided or expire",
        "waits_for_permission": "WAITS: nothing is deleted while the clock is in doubt",
    }
    state = known.get(told.retention, told.retention)
    return f"{state}; {exceeding}" if (exceeding := exceeding_of(told)) else state


def exceeding_of(told: StatusAnswer) -> str:
    """Say that undecided messages alone exceed the log's size limit; empty if they do not."""
    if not 0 < told.retention_bytes < told.undecided_bytes:
        return ""
    return (
        f"{human_bytes(told.undecided_bytes)} of undecided messages EXCEED store.retention_bytes,"
        f" which is {human_bytes(told.retention_bytes)}"
    )


def flushes_of(told: StatusAnswer) -> str:
    """Describe how long flushes take."""
    if told.durability == "os":
        return "none: durability is left to the operating system"
    if not told.flush_ms_p99:
        return "none so far"
    return f"{told.flush_ms_median:g} ms, 99 of 100 within {told.flush_ms_p99:g} ms"


WAITS = "undecided transactions wait"


def pipeline_of(told: StatusAnswer) -> str:
    """Describe whether a pipeline is attached, or since when it is away."""
    away_since_ms = told.pipeline_away_since_ms
    if not away_since_ms and told.checker != "pipeline" and not told.last_verdict_at_ms:
        return "none, and none is needed for checks"
    if not away_since_ms:
        stuck = told.undecided_without_ledger
        waits = f", {stuck} undecided WAIT for a ledger that it cannot reach" if stuck else ""
        if told.last_verdict_at_ms:
            ago = duration(told.now_ms - told.last_verdict_at_ms)
            return f"attached, its last verdict came {ago} ago{waits}"
        if told.undecided:
            return f"attached, no verdict so far{waits}"
        return "attached, nothing to settle so far"
    since = f"since {at(away_since_ms)}, for {duration(told.now_ms - away_since_ms)}"
    waits = "the broker checks instead" if told.checker == "broker" else WAITS
    return f"AWAY {since}: {waits}; start escrowmq up or escrowmq pipeline"


def checks_of(told: StatusAnswer) -> str:
    """Describe which process checks undecided transactions, and what its last round did."""
    if told.checker == "none":
        return f"OFF (transaction.checked_by = off): {WAITS}"
    if told.checker == "pipeline":
        since = f" since {at(told.checker_since_ms)}" if told.checker_since_ms else ""
        return f"by the pipeline{since}"
    since = f"by the broker since {at(told.checker_since_ms)}"
    if not told.round_ended_at_ms:
        return f"{since}, no round so far"
    ago = duration(told.now_ms - told.round_ended_at_ms)
    if told.round_error:
        return f"{since}; its last round, {ago} ago, FAILED: {told.round_error}"
    return f"{since}; its last round, {ago} ago: {told.round_did or 'nothing was due'}"


def gap_of(told: StatusAnswer) -> str:
    """Describe the gap between the wall clock and store time."""
    apart = duration(abs(told.clock_gap_ms))
    match told.clock_gap:
        case "ahead":
            return f"wall time is {apart} AHEAD and not confirmed: store time does not follow"
        case "behind":
            return f"wall time is {apart} BEHIND: store time never goes back"
        case "":
            return "unknown: the broker runs an older release"
        case _:
            return f"small: {apart}"


def deletion_of(told: StatusAnswer) -> str:
    """Say whether retention deletes messages by age, and if not, what it waits for."""
    if not told.deletion_waits:
        return "goes on"
    ends = f", for {duration(told.deletion_waits_ms)} more" if told.deletion_waits_ms else ""
    return f"waits: {told.deletion_waits}{ends}"
