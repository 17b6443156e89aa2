"""``escrowmq topic``: list, show, create and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from escrowmq.cli import options
from escrowmq.cli.asking import asking, at, queues_of, whoami
from escrowmq.cli.options import DEFAULT_BROKER, BrokerOption, DryRunOption, Output, OutputOption
from escrowmq.cli.output import print_item, print_table
from escrowmq.cli.shapes.broker_shapes import (
    TopicDeletedShape,
    TopicMadeShape,
    TopicQueueShape,
    TopicShape,
)
from escrowmq.model.catalog import READ_WRITE
from escrowmq.model.errors import RequestRefused
from escrowmq.model.topic_names import DEFAULT_TOPIC
from escrowmq.protocol.native.headers import TopicFilterHeader
from escrowmq.protocol.native.operator_headers import DeleteTopicHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.admin_headers import MESSAGE_TYPE, CreateTopicHeader
from escrowmq.protocol.remoting.cluster_bodies import SINGLE_TAG
from escrowmq.protocol.remoting.codes import RequestCode

if TYPE_CHECKING:
    from escrowmq.client.network.native_calls import NativeCalls

app = typer.Typer()

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]


@app.command(name="list")
def list_(
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
    *,
    all_: Annotated[bool, typer.Option("--all", help="List system topics, too.")] = False,
) -> None:
    """Print every topic."""
    with asking(broker) as calls:
        found = [row for row in calls.rows(NativeCode.LIST_TOPICS) if all_ or not row.is_system]
    topics = [
        TopicShape.of(
            row,
            type=row.message_type,
            queues=row.write_queue_count,
            created_at_ms=row.created_at_ms or None,
        )
        for row in found
    ]
    print_table(TopicShape, topics, output, TOPIC_COLUMNS, "no topics")


@app.command()
def show(
    name: TopicArgument, broker: BrokerOption = DEFAULT_BROKER, output: OutputOption = Output.TABLE
) -> None:
    """Print the queues of a topic, and the lag of each consumer group."""
    with asking(broker) as calls:
        found = _queues(calls, name)
        offsets = list(calls.rows(NativeCode.LIST_OFFSETS, TopicFilterHeader(topic=name)))
    queues = [
        TopicQueueShape.of(
            queue,
            messages=queue.end - queue.start,
            lag_by_group={row.group: row.lag for row in offsets if row.queue_id == queue.queue_id},
        )
        for queue in found
    ]
    print_table(TopicQueueShape, queues, output, QUEUE_COLUMNS)


TOPIC_COLUMNS = (
    *("topic", "type", "queues", "perm"),
    ("created", lambda topic: at(topic.created_at_ms)),
)
QUEUE_COLUMNS = (
    *(("queue", "queue_id"), "start", "end", "messages"),
    (
        "lag by group",
        lambda queue: ", ".join(f"{group}: {lag}" for group, lag in queue.lag_by_group.items()),
    ),
)


@app.command()
def create(
    name: TopicArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    queues: Annotated[int, typer.Option(min=1, max=1_024, help="Number of queues.")] = 8,
    type_: Annotated[
        str, typer.Option("--type", help="Type: NORMAL, FIFO, DELAY or TRANSACTION.")
    ] = "NORMAL",
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
) -> None:
    """Create a topic, or change its number of queues and its type."""
    header = CreateTopicHeader(
        topic=name,
        default_topic=DEFAULT_TOPIC,
        read_queue_count=queues,
        write_queue_count=queues,
        permissions=READ_WRITE,
        filter_type=SINGLE_TAG,
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
            "--force", help="Delete undecided messages, too; they can then only be rolled back."
        ),
    ] = False,
    yes: options.YesOption = False,
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
) -> None:
    """Delete a topic and its messages; a new topic with the same name begins empty."""
    with asking(broker) as calls:
        queues = _queues(calls, name)
        count = sum(row.end - row.start for row in queues)
        told = None
        if not dry_run:
            if not yes:
                question = f"Remove topic {name} and its {count} messages?"
                typer.confirm(question, abort=True, err=True)
            header = DeleteTopicHeader(topic=name, by=whoami(), is_forced=force)
            told = calls.call(NativeCode.DELETE_TOPIC, header).header
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


def _queues(calls: NativeCalls, topic: str) -> list[Any]:
    """Return the queues of a topic; refuse an unknown topic."""
    if all(row.topic != topic for row in calls.rows(NativeCode.LIST_TOPICS)):
        raise RequestRefused("topic_unknown", "escrowmq topic list shows all", topic=topic)
    return queues_of(calls, topic)
