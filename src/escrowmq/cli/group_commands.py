"""``escrowmq group``: who produces and consumes, and how far consumers are."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from escrowmq.cli.asking import DEFAULT_BROKER, BrokerOption, DryRunOption, asking
from escrowmq.cli.output import Output, OutputOption, show_rows
from escrowmq.model.errors import RequestRefused

app = typer.Typer(help="List groups, and move consumers.", no_args_is_help=True)

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP")]
END = -1


@app.callback()
def group() -> None:
    """List groups, and move consumers."""


@app.command(name="list")
def list_(broker: BrokerOption = DEFAULT_BROKER, output: OutputOption = Output.TABLE) -> None:
    """Print every producer and consumer group, how many are online, and what consumers lag."""
    from escrowmq.protocol.own import OwnCode

    with asking(broker) as calls:
        members = list(calls.rows(OwnCode.LIST_GROUPS))
        offsets = list(calls.rows(OwnCode.LIST_OFFSETS))
    online: dict[tuple[str, str], int] = defaultdict(int)
    for row in members:
        online[row.group, row.role] += row.client_id is not None
    lag: dict[str, int] = defaultdict(int)
    for row in offsets:
        lag[row.group] += row.lag
        online.setdefault((row.group, "consumer"), 0)
    rows = [
        (name, role, count, lag[name] if role == "consumer" else None)
        for (name, role), count in sorted(online.items())
    ]
    show_rows(("group", "role", "online", "lag"), rows, output, "no groups")


@app.command()
def show(
    name: GroupArgument, broker: BrokerOption = DEFAULT_BROKER, output: OutputOption = Output.TABLE
) -> None:
    """Print how far a consumer group is in each queue."""
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import TopicFilterHeader

    with asking(broker) as calls:
        offsets = list(calls.rows(OwnCode.LIST_OFFSETS, TopicFilterHeader(group=name)))
        online = [row for row in calls.rows(OwnCode.LIST_GROUPS) if row.group == name]
    if not offsets and not online:
        raise RequestRefused("group_unknown", "escrowmq group list shows all", group=name)
    rows = [(row.topic, row.queue_id, row.offset, row.end, row.lag) for row in offsets]
    show_rows(("topic", "queue", "offset", "end", "lag"), rows, output, "it has read nothing yet")
    if output is Output.TABLE:
        for row in online:
            if row.client_id is not None:
                typer.echo(f"online: {row.role} {row.client_id} at {row.address}, {row.language}")


@app.command(name="reset-offset")
def reset_offset(
    name: GroupArgument,
    topic: Annotated[str, typer.Option(help="In which topic.")],
    to: Annotated[
        str, typer.Option(metavar="earliest|latest|TIME", help="Where to; a time as ISO 8601.")
    ],
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    dry_run: DryRunOption = False,
) -> None:
    """Send a consumer group to another place, whether it is online or not."""
    from escrowmq.protocol.admin_headers import ResetOffsetHeader
    from escrowmq.protocol.codes import RequestCode

    at_ms = place_of(to)
    if dry_run:
        typer.echo(f"would send group {name} to {to} of topic {topic}")
        return
    header = ResetOffsetHeader(consumer_group=name, topic=topic, stored_at_ms=at_ms, is_forced=True)
    with asking(broker) as calls:
        calls.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    typer.echo(f"group {name} is at {to} of topic {topic}")


def place_of(text: str) -> int:
    """A place in a queue as the protocol has it: milliseconds, or -1 for the end."""
    if text in ("earliest", "latest"):
        return 0 if text == "earliest" else END
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise RequestRefused(
            "time_malformed", "earliest, latest, or a time such as 2026-01-31T12:00", time=text[:64]
        ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000)
