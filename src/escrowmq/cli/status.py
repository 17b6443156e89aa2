"""``escrowmq status``: how a broker is, in one look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from escrowmq.cli.asking import DEFAULT_BROKER, BrokerOption, asking, at, duration
from escrowmq.cli.output import Output, OutputOption, show_facts

if TYPE_CHECKING:
    from escrowmq.protocol.own_headers import StatusAnswer


def status(broker: BrokerOption = DEFAULT_BROKER, output: OutputOption = Output.TABLE) -> None:
    """Print how a broker is: what is undecided, whether it is settled, who is there."""
    from escrowmq.protocol.own import OwnCode

    with asking(broker) as calls:
        told = calls.call(OwnCode.STATUS).header
    show_facts(facts(told) if output is Output.TABLE else raw(told), output)


def raw(told: StatusAnswer) -> dict[str, Any]:
    """For programs: as the broker says it, times in milliseconds."""
    import msgspec

    left_out = ("form", "version", "row_count")
    return {
        name: value for name, value in msgspec.structs.asdict(told).items() if name not in left_out
    }


def facts(told: StatusAnswer) -> dict[str, str]:
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
        "pipeline": _pipeline(told),
        "undecided": undecided,
        "parked": str(told.parked) if not told.parked else f"{told.parked}: see escrowmq txn list",
        "contradictions": str(told.contradictions),
        "back-checks sent": str(told.checks_sent),
        "clients": (
            f"{told.producers_online} producers, {told.consumers_online} consumers, "
            f"{told.connections} connections"
        ),
        "topics": f"{told.topics}, with {told.queues} queues",
        "log": f"{told.log_end - told.log_start:,} bytes, up to {told.log_end}",
    }


def _pipeline(told: StatusAnswer) -> str:
    away_since_ms = told.pipeline_away_since_ms
    if not away_since_ms:
        if not told.last_verdict_at_ms:
            return "attached, nothing to settle so far"
        ago = duration(told.now_ms - told.last_verdict_at_ms)
        return f"attached, its last verdict came {ago} ago"
    since = f"since {at(away_since_ms)}, for {duration(told.now_ms - away_since_ms)}"
    return f"AWAY {since}: undecided transactions wait; start escrowmq up or escrowmq pipeline"
