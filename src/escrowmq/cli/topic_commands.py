"""``escrowmq topic``: list, show, create and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from escrowmq.cli.asking import DEFAULT_BROKER, BrokerOption, DryRunOption, asking, at
from escrowmq.cli.output import Output, OutputOption, as_table, print_item, print_list
from escrowmq.cli.shapes import TopicDeletedShape, TopicMadeShape, TopicQueueShape, TopicShape
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
    topics = [
        TopicShape(
            topic=row.topic,
            type=row.message_type,
            queues=row.write_queue_count,
            perm=row.perm,
            created_at_ms=row.created_at_ms or None,
            is_system=row.is_system,
        )
        for row in found
    ]

    def table() -> str:
        rows = [
            (one.topic, one.type, one.queues, one.perm, at(one.created_at_ms)) for one in topics
        ]
        return as_table(("topic", "type", "queues", "perm", "created"), rows, "no topics")

    print_list(TopicShape, topics, output, table)


@app.command()
def show(
    name: TopicArgument, broker: BrokerOption = DEFAULT_BROKER, output: OutputOption = Output.TABLE
) -> None:
    """Print the queues of a topic, and the lag of each consumer group."""
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import TopicFilterHeader

    with asking(broker) as calls:
        found = _queues(calls, name)
        offsets = list(calls.rows(OwnCode.LIST_OFFSETS, TopicFilterHeader(topic=name)))
    queues = [
        TopicQueueShape(
            queue_id=queue.queue_id,
            start=queue.start,
            end=queue.end,
            messages=queue.end - queue.start,
            lag_by_group={row.group: row.lag for row in offsets if row.queue_id == queue.queue_id},
        )
        for queue in found
    ]

    def table() -> str:
        rows = [(one.queue_id, one.start, one.end, one.messages, _lags(one)) for one in queues]
        return as_table(("queue", "start", "end", "messages", "lag by group"), rows)

    print_list(TopicQueueShape, queues, output, table)


def _lags(queue: TopicQueueShape) -> str:
    return ", ".join(f"{group}: {lag}" for group, lag in queue.lag_by_group.items())


@app.command()
def create(
    name: TopicArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    queues: Annotated[int, typer.Option(min=1, max=1_024, help="How many queues.")] = 8,
    type_: Annotated[
        str, typer.Option("--type", help="NORMAL, FIFO, DELAY or TRANSACTION.")
    ] = "NORMAL",
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
) -> None:
    """Create a topic, or change its number of queues and its type."""
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
    if not dry_run:
        with asking(broker) as calls:
            calls.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    made = TopicMadeShape(topic=name, queues=queues, type=type_.upper(), is_dry_run=dry_run)
    told = f"topic {name}: {queues} queues, type {made.type}"
    print_item(made, output, lambda: f"would make {told}" if dry_run else told)


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
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
) -> None:
    """Delete a topic and its messages; a new topic with the same name begins empty."""
    from escrowmq.cli.asking import whoami
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_hand_headers import DeleteTopicHeader

    with asking(broker) as calls:
        queues = _queues(calls, name)
        count = sum(row.end - row.start for row in queues)
        told = None
        if not dry_run:
            if not yes:
                question = f"Remove topic {name} and its {count} messages?"
                typer.confirm(question, abort=True, err=True)
            header = DeleteTopicHeader(topic=name, by=whoami(), is_forced=force)
            told = calls.call(OwnCode.DELETE_TOPIC, header).header
    deleted = TopicDeletedShape(
        topic=name,
        queues=len(queues),
        messages=count,
        undecided=told and told.undecided,
        delayed=told and told.waiting,
        is_dry_run=dry_run,
    )
    print_item(deleted, output, lambda: _deleted_text(deleted))


def _deleted_text(deleted: TopicDeletedShape) -> str:
    if deleted.is_dry_run:
        holds = f"{deleted.queues} queues, {deleted.messages} messages"
        return f"would remove topic {deleted.topic}: {holds}"
    lines = [f"topic {deleted.topic} removed"]
    if deleted.undecided:
        lines.append(
            f"{deleted.undecided} half messages can only be rolled back: escrowmq txn list"
        )
    if deleted.delayed:
        lines.append(f"{deleted.delayed} delayed messages will never be visible")
    return "\n".join(lines)


def _queues(calls: OwnCalls, topic: str) -> list[Any]:
    """Return the queues of a topic; refuse an unknown topic."""
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import ListQueuesHeader

    if all(row.topic != topic for row in calls.rows(OwnCode.LIST_TOPICS)):
        raise RequestRefused("topic_unknown", "escrowmq topic list shows all", topic=topic)
    return list(calls.rows(OwnCode.LIST_QUEUES, ListQueuesHeader(topic=topic)))
