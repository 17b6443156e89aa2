"""``escrowmq status``: how a broker is, in one look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from escrowmq.cli.asking import DEFAULT_BROKER, BrokerOption, asking, at, duration
from escrowmq.cli.clock_text import deletion_of, gap_of
from escrowmq.cli.lag import Lag, largest_lag
from escrowmq.cli.output import Output, OutputOption, show_facts

if TYPE_CHECKING:
    from escrowmq.protocol.own_headers import StatusAnswer


def status(broker: BrokerOption = DEFAULT_BROKER, output: OutputOption = Output.TABLE) -> None:
    """Print how a broker is: what is undecided, whether it is settled, who is there."""
    from escrowmq.protocol.own import OwnCode

    with asking(broker) as calls:
        told = calls.call(OwnCode.STATUS).header
        lag = largest_lag(calls)
    show_facts(facts(told, lag) if output is Output.TABLE else raw(told, lag), output)


def raw(told: StatusAnswer, lag: Lag) -> dict[str, Any]:
    """For programs: as the broker says it, times in milliseconds."""
    import msgspec

    left_out = ("form", "version", "row_count")
    return {
        name: value for name, value in msgspec.structs.asdict(told).items() if name not in left_out
    } | {"lag_max": lag.messages, "lag_max_group": lag.group, "lag_max_topic": lag.topic}


def facts(told: StatusAnswer, lag: Lag) -> dict[str, str]:
    """For people."""
    now_ms = told.now_ms
    undecided = f"{told.undecided}"
    if told.undecided:
        undecided += f", the oldest for {duration(told.oldest_undecided_age_ms)}"
    if told.undecided_without_producer:
        undecided += f", {told.undecided_without_producer} with nobody to ask"
    return {
        "broker": f"{told.broker} at {told.broker_address}, version {told.broker_version}",
        "running": f"for {duration(now_ms - told.started_at_ms)}",
        "pipeline": pipeline_of(told),
        "undecided": undecided,
        "parked": str(told.parked) if not told.parked else f"{told.parked}: see escrowmq txn list",
        "contradictions": str(told.contradictions),
        "back-checks sent": str(told.checks_sent),
        "clients": (
            f"{told.producers_online} producers, {told.consumers_online} consumers, "
            f"{told.connections} connections"
        ),
        "topics": f"{told.topics}, with {told.queues} queues",
        "names": f"NEAR THE LIMIT: {told.names_near}" if told.names_near else "far from limits",
        "lag": lag_of(lag),
        "disk": disk_of(told),
        "retention": retention_of(told),
        "flushes": flushes_of(told),
        "clock": f"{gap_of(told)}; deletion {deletion_of(told)}",
        "log": f"{told.log_end - told.log_start:,} bytes, up to {told.log_end}",
    }


def lag_of(lag: Lag) -> str:
    """The largest lag."""
    if not lag.messages:
        return "none: consumers have everything"
    return f"at most {lag.messages:,} messages, of group {lag.group} in topic {lag.topic}"


def disk_of(told: StatusAnswer) -> str:
    """Room on the disk."""
    if not told.disk:
        return "unknown"
    free = f"{told.disk_free_bytes:,} bytes free"
    return free if told.disk == "all" else f"{free}, TOO FEW: {told.disk.replace('_', ' ')}"


def retention_of(told: StatusAnswer) -> str:
    """What deletes old messages, and what it waits for."""
    if not told.retention:
        return "unknown"
    known = {
        "waits_for_room": f"WAITS for {told.retention_missing_bytes:,} bytes of room on the disk",
        "waits_for_decisions": "WAITS for decisions, or for its time to be over",
        "waits_for_permission": "WAITS: nothing may be deleted while the clock is in doubt",
    }
    state = known.get(told.retention, told.retention)
    return f"{state}; {exceeding}" if (exceeding := exceeding_of(told)) else state


def exceeding_of(told: StatusAnswer) -> str:
    """That undecided messages alone are more than the log may have, if they are."""
    if not 0 < told.retention_bytes < told.undecided_bytes:
        return ""
    return (
        f"{told.undecided_bytes:,} undecided bytes EXCEED store.retention_bytes,"
        f" which is {told.retention_bytes:,}"
    )


def flushes_of(told: StatusAnswer) -> str:
    """How long flushes take."""
    if told.durability == "os":
        return "none: durability is left to the operating system"
    if not told.flush_ms_p99:
        return "none so far"
    return f"{told.flush_ms_median:g} ms, 99 of 100 within {told.flush_ms_p99:g} ms"


def pipeline_of(told: StatusAnswer) -> str:
    """Whether it is attached, or since when not."""
    away_since_ms = told.pipeline_away_since_ms
    if not away_since_ms:
        if not told.last_verdict_at_ms:
            return "attached, nothing to settle so far"
        ago = duration(told.now_ms - told.last_verdict_at_ms)
        return f"attached, its last verdict came {ago} ago"
    since = f"since {at(away_since_ms)}, for {duration(told.now_ms - away_since_ms)}"
    return f"AWAY {since}: undecided transactions wait; start escrowmq up or escrowmq pipeline"
