"""``escrowmq topic``: what topics there are, and how far their queues go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from escrowmq.cli.asking import DEFAULT_BROKER, BrokerOption, DryRunOption, asking, at
from escrowmq.cli.output import Output, OutputOption, show_rows
from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from escrowmq.client.own_calls import OwnCalls

app = typer.Typer(help="List, make and remove topics.", no_args_is_help=True)

READ_AND_WRITE = 6
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC")]


@app.callback()
def topic() -> None:
    """List, make and remove topics."""


@app.command(name="list")
def list_(
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
    *,
    all_: Annotated[bool, typer.Option("--all", help="The system's too.")] = False,
) -> None:
    """Print every topic."""
    from escrowmq.protocol.own import OwnCode

    with asking(broker) as calls:
        found = [row for row in calls.rows(OwnCode.LIST_TOPICS) if all_ or not row.is_system]
    rows = [
        (row.topic, row.message_type, row.write_queue_count, row.perm, at(row.created_at_ms))
        for row in found
    ]
    show_rows(("topic", "type", "queues", "perm", "created"), rows, output, "no topics")


@app.command()
def show(
    name: TopicArgument, broker: BrokerOption = DEFAULT_BROKER, output: OutputOption = Output.TABLE
) -> None:
    """Print the queues of a topic, and who reads them how far."""
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import TopicFilterHeader

    with asking(broker) as calls:
        queues = _queues(calls, name)
        offsets = list(calls.rows(OwnCode.LIST_OFFSETS, TopicFilterHeader(topic=name)))
    lags = {
        queue.queue_id: ", ".join(
            f"{row.group}: {row.lag}" for row in offsets if row.queue_id == queue.queue_id
        )
        for queue in queues
    }
    rows = [
        (
            row.queue_id,
            row.start,
            row.end,
            row.end - row.start,
            lags[row.queue_id],
        )
        for row in queues
    ]
    show_rows(("queue", "start", "end", "messages", "lag by group"), rows, output)


@app.command()
def create(
    name: TopicArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    queues: Annotated[int, typer.Option(min=1, max=1_024, help="How many queues.")] = 8,
    type_: Annotated[
        str, typer.Option("--type", help="NORMAL, FIFO, DELAY or TRANSACTION.")
    ] = "NORMAL",
    dry_run: DryRunOption = False,
) -> None:
    """Make a topic, or change how many queues it has and what it is for."""
    from escrowmq.protocol.admin_headers import MESSAGE_TYPE, CreateTopicHeader
    from escrowmq.protocol.codes import RequestCode

    header = CreateTopicHeader(
        topic=name,
        default_topic="TBW102",
        read_queue_count=queues,
        write_queue_count=queues,
        permissions=READ_AND_WRITE,
        filter_type="SINGLE_TAG",
        attributes=f"+{MESSAGE_TYPE}={type_.upper()}",
    )
    if dry_run:
        typer.echo(f"would make topic {name} with {queues} queues, type {type_.upper()}")
        return
    with asking(broker) as calls:
        calls.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    typer.echo(f"topic {name}: {queues} queues, type {type_.upper()}")


@app.command()
def delete(
    name: TopicArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also if messages are undecided: they can only be rolled back then."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete a topic and its messages; one made again under its name begins empty."""
    from escrowmq.cli.asking import whoami
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_hand_headers import DeleteTopicHeader

    with asking(broker) as calls:
        queues = _queues(calls, name)
        count = sum(row.end - row.start for row in queues)
        if dry_run:
            typer.echo(f"would remove topic {name}: {len(queues)} queues, {count} messages")
            return
        if not yes:
            typer.confirm(f"Remove topic {name} and its {count} messages?", abort=True)
        header = DeleteTopicHeader(topic=name, by=whoami(), is_forced=force)
        told = calls.call(OwnCode.DELETE_TOPIC, header).header
    typer.echo(f"topic {name} removed")
    if told.undecided:
        typer.echo(f"{told.undecided} half messages can only be rolled back: escrowmq txn list")
    if told.waiting:
        typer.echo(f"{told.waiting} delayed messages will never be visible")


def _queues(calls: OwnCalls, topic: str) -> list[Any]:
    """The queues of a topic that exists."""
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import ListQueuesHeader

    if all(row.topic != topic for row in calls.rows(OwnCode.LIST_TOPICS)):
        raise RequestRefused("topic_unknown", "escrowmq topic list shows all", topic=topic)
    return list(calls.rows(OwnCode.LIST_QUEUES, ListQueuesHeader(topic=topic)))
