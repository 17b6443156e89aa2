"""``escrowmq group``: list groups, show offsets, move, pause and resume consumers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.cli import options
from escrowmq.cli.asking import asking, at, iso_ms, whoami
from escrowmq.cli.options import DEFAULT_BROKER, BrokerOption, DryRunOption, Output, OutputOption
from escrowmq.cli.output import as_table, print_item, print_list, print_table
from escrowmq.cli.preview import escaped
from escrowmq.cli.shapes import broker_shapes
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.native.headers import TopicFilterHeader
from escrowmq.protocol.native.operator_headers import PausedRow, PauseGroupHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.admin_headers import ResetOffsetHeader
from escrowmq.protocol.remoting.codes import RequestCode

if TYPE_CHECKING:
    from escrowmq.client.network.native_calls import NativeCalls

app = typer.Typer()

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
ReasonOption = Annotated[str, typer.Option(help="The reason; the broker keeps it.")]
CONSUMER = "consumer"
#: Named positions in a queue as the protocol encodes them: milliseconds, or -1 for the end.
PLACES = {"earliest": 0, "latest": -1}
COLUMNS = (
    *("group", "role", "online", "lag"),
    ("in flight", lambda group: "" if group.in_flight is None else str(group.in_flight)),
    ("paused since", lambda group: at(group.paused_at_ms)),
)


@app.command(name="list")
def list_(broker: BrokerOption = DEFAULT_BROKER, output: OutputOption = Output.TABLE) -> None:
    """Print every producer and consumer group, its online members, and the lag of consumers."""
    with asking(broker) as calls:
        members = list(calls.rows(NativeCode.LIST_GROUPS))
        offsets = list(calls.rows(NativeCode.LIST_OFFSETS))
        paused = _paused(calls)
    online: dict[tuple[str, str], int] = defaultdict(int)
    for row in members:
        online[row.group, row.role] += row.client_id is not None
    lag: dict[str, int] = defaultdict(int)
    in_flight: dict[str, int] = defaultdict(int)
    for row in offsets:
        lag[row.group] += row.lag
        in_flight[row.group] += row.in_flight
        online.setdefault((row.group, CONSUMER), 0)
    groups = [
        broker_shapes.GroupShape(
            group=name,
            role=role,
            online=count,
            lag=lag[name] if role == CONSUMER else None,
            in_flight=in_flight[name] if role == CONSUMER else None,
            paused_at_ms=paused[name].at_ms if role == CONSUMER and name in paused else None,
        )
        for (name, role), count in sorted(online.items())
    ]
    print_table(broker_shapes.GroupShape, groups, output, COLUMNS, "no groups")


@app.command()
def show(
    name: GroupArgument, broker: BrokerOption = DEFAULT_BROKER, output: OutputOption = Output.TABLE
) -> None:
    """Print a consumer group's offset and lag in each queue, and its online members."""
    with asking(broker) as calls:
        offsets = list(calls.rows(NativeCode.LIST_OFFSETS, TopicFilterHeader(group=name)))
        online = [row for row in calls.rows(NativeCode.LIST_GROUPS) if row.group == name]
        pause = _paused(calls).get(name)
    if not offsets and not online:
        raise RequestRefused("group_unknown", "`escrowmq group list` shows all groups", group=name)
    shown = broker_shapes.GroupShownShape(
        group=name,
        queues=[broker_shapes.GroupQueueShape.of(row) for row in offsets],
        online=[broker_shapes.MemberShape.of(row) for row in online if row.client_id is not None],
        pause=None if pause is None else broker_shapes.PauseShape.of(pause),
    )
    if output is Output.CSV:
        print_list(broker_shapes.GroupQueueShape, shown.queues, output, str)
    else:
        print_item(shown, output, lambda: _shown_text(shown))


def _shown_text(shown: broker_shapes.GroupShownShape) -> str:
    rows = [
        (one.topic, one.queue_id, one.offset, one.end, one.lag, one.in_flight)
        for one in shown.queues
    ]
    columns = ("topic", "queue", "offset", "end", "lag", "in flight")
    online = [
        escaped(f"online: {one.role} {one.client_id} at {one.address}, {one.language}")
        for one in shown.online
    ]
    return "\n".join(
        [as_table(columns, rows, "it has read nothing yet"), *_pause_text(shown.pause), *online]
    )


def _pause_text(pause: broker_shapes.PauseShape | None) -> list[str]:
    if pause is None:
        return []
    why = f": {escaped(pause.reason)}" if pause.reason else ""
    return [f"PAUSED since {at(pause.at_ms)} by {escaped(pause.by)}{why}"]


@app.command(name="reset-offset")
def reset_offset(
    name: GroupArgument,
    topic: options.TopicOption,
    to: Annotated[
        str, typer.Option(metavar="earliest|latest|TIME", help="Position; a time as ISO 8601.")
    ],
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
) -> None:
    """Move a consumer group to another offset, whether it is online or not."""
    at_ms = place_of(to)
    header = ResetOffsetHeader(consumer_group=name, topic=topic, stored_at_ms=at_ms, is_forced=True)
    if not dry_run:
        with asking(broker) as calls:
            calls.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    reset = broker_shapes.OffsetResetShape(
        group=name, topic=topic, to=to, to_at_ms=None if to in PLACES else at_ms, is_dry_run=dry_run
    )
    text = f"would send group {name} to" if dry_run else f"group {name} is at"
    print_item(reset, output, lambda: f"{text} {to} of topic {topic}")


@app.command()
def pause(
    name: GroupArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
    *,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
) -> None:
    """Deliver no messages to a consumer group until it is resumed.

    Its members stay connected and keep their offsets. The pause survives a restart of the broker.
    Messages that its members have already received are not recalled.
    """
    _set_paused(name, broker, output, reason, is_paused=True, dry_run=dry_run)


@app.command()
def resume(
    name: GroupArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
    *,
    dry_run: DryRunOption = False,
) -> None:
    """Deliver messages to a paused consumer group again, from where it stopped."""
    _set_paused(name, broker, output, "", is_paused=False, dry_run=dry_run)


def _set_paused(
    name: str, broker: str, output: Output, reason: str, *, is_paused: bool, dry_run: bool
) -> None:
    done = "paused" if is_paused else "resumed"
    with asking(broker) as calls:
        if dry_run:
            known = {
                row.group for row in calls.rows(NativeCode.LIST_GROUPS) if row.role == CONSUMER
            }
            if name not in known:
                raise RequestRefused(
                    "group_unknown", "`escrowmq group list` shows all groups", group=name
                )
            is_changed = (name in _paused(calls)) != is_paused
            done = f"would be {done}" if is_changed else f"is {_word(is_paused=is_paused)} already"
        else:
            header = PauseGroupHeader(group=name, is_paused=is_paused, by=whoami(), reason=reason)
            is_changed = calls.call(NativeCode.PAUSE_GROUP, header).header.is_changed
            done = f"is {done}" if is_changed else f"was {_word(is_paused=is_paused)} already"
    result = broker_shapes.GroupPausedShape(
        group=name, is_paused=is_paused, is_changed=is_changed, is_dry_run=dry_run
    )
    print_item(result, output, lambda: f"group {name} {done}")


def _word(*, is_paused: bool) -> str:
    return "paused" if is_paused else "not paused"


def _paused(calls: NativeCalls) -> dict[str, PausedRow]:
    """Return the paused groups by name; a broker of an older release has none."""
    if not calls.call(NativeCode.STATUS).header.groups_paused:
        return {}
    return {row.group: row for row in calls.rows(NativeCode.LIST_PAUSED)}


def place_of(text: str) -> int:
    """Convert a position in a queue to the protocol's encoding: milliseconds, or -1 for the end."""
    if text in PLACES:
        return PLACES[text]
    try:
        return iso_ms(text)
    except ValueError:
        raise RequestRefused(
            "time_malformed", "earliest, latest, or a time such as 2026-01-31T12:00", time=text[:64]
        ) from None
