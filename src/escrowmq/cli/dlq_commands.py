"""``escrowmq dlq``: list the dead letters of consumer groups, and send them again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.cli.asking import DEFAULT_BROKER, BrokerOption, DryRunOption, asking, at, whoami
from escrowmq.cli.output import Output, OutputOption, as_table, print_list
from escrowmq.cli.preview import PREVIEW_BYTES, preview
from escrowmq.cli.shapes import DeadLetterShape, DeadLettersShape, RedrivenShape
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.properties import split_keys

if TYPE_CHECKING:
    from escrowmq.client.own_calls import OwnCalls
    from escrowmq.protocol.own_rows import MessageRow

app = typer.Typer(help="See what consumers gave up, and send it again.", no_args_is_help=True)

EXIT_REFUSED = 1
BODY_WIDTH = 60
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="A consumer group.")]
LimitOption = Annotated[int, typer.Option(min=1, max=1_000_000, help="How many, at most.")]
TargetOption = Annotated[
    str,
    typer.Option(
        "--to", metavar="group|topic", help="To this group alone, or to all of the first topic."
    ),
]


@app.callback()
def dlq() -> None:
    """See what consumers gave up, and send it again."""


@app.command(name="list")
def list_(broker: BrokerOption = DEFAULT_BROKER, output: OutputOption = Output.TABLE) -> None:
    """Print every group that has dead letters, and how many it has."""
    from escrowmq.cli.redriving import DLQ_PREFIX
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import ListQueuesHeader

    counts: dict[str, int] = {}
    with asking(broker) as calls:
        for topic in calls.rows(OwnCode.LIST_TOPICS):
            if topic.topic.startswith(DLQ_PREFIX):
                queues = calls.rows(OwnCode.LIST_QUEUES, ListQueuesHeader(topic=topic.topic))
                counts[topic.topic] = sum(queue.end - queue.start for queue in queues)
    groups = [
        DeadLettersShape(group=topic.removeprefix(DLQ_PREFIX), letters=count, topic=topic)
        for topic, count in counts.items()
    ]

    def table() -> str:
        rows = [(one.group, one.letters, one.topic) for one in groups]
        return as_table(("group", "letters", "topic"), rows, "no group has given anything up")

    print_list(DeadLettersShape, groups, output, table)


@app.command()
def show(
    group: GroupArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
    *,
    limit: LimitOption = 100,
) -> None:
    """Print the dead letters of a group, the oldest first, and whether each was sent again."""
    from escrowmq.cli.redriving import first_topic, letters, was_sent

    with asking(broker) as calls:
        found = [
            DeadLetterShape(
                message_id=letter.message_id,
                topic=first_topic(letter),
                given_up_at_ms=letter.stored_at_ms,
                tries=letter.reconsume_times,
                was_sent_again=was_sent(calls, letter),
                keys=list(split_keys(letter.keys)),
                body_preview=_preview(letter),
            )
            for letter in islice(letters(calls, group), limit)
        ]

    def table() -> str:
        columns = ("id", "topic", "given up", "tries", "sent again", "keys", "body")
        return as_table(columns, [_cells(letter) for letter in found], "it has no dead letters")

    print_list(DeadLetterShape, found, output, table)


def _preview(letter: MessageRow) -> str:
    start = letter.body[:PREVIEW_BYTES]
    return preview(start, len(letter.body), sys_flag=letter.sys_flag, width=BODY_WIDTH)


def _cells(letter: DeadLetterShape) -> tuple[object, ...]:
    return (
        letter.message_id,
        letter.topic,
        at(letter.given_up_at_ms),
        letter.tries,
        letter.was_sent_again,
        " ".join(letter.keys),
        letter.body_preview,
    )


@app.command()
def redrive(
    group: GroupArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
    *,
    id_: Annotated[
        list[str] | None, typer.Option("--id", help="Only this one; may be repeated.")
    ] = None,
    limit: LimitOption = 1_000,
    to: TargetOption = "group",
    dry_run: DryRunOption = False,
) -> None:
    """Send dead letters again, the oldest first; repeating this sends none of them twice.

    Exit code 1: the broker refused some of them.
    """
    from escrowmq.cli.redriving import Sent, Target, target_topic, was_sent
    from escrowmq.cli.redriving import redrive as send

    if to not in set(Target):
        raise RequestRefused("target_unknown", "say --to group or --to topic", to=to[:64])
    target = Target(to)
    with asking(broker) as calls:
        found = islice(_chosen(calls, group, id_ or []), limit)
        if dry_run:
            sent = [
                Sent(
                    letter.message_id,
                    target_topic(letter, group, target),
                    "sent before" if was_sent(calls, letter) else "would be sent",
                )
                for letter in found
            ]
        else:
            sent = list(send(calls, found, group, target, whoami()))
    redriven = [
        RedrivenShape(
            message_id=one.message_id,
            topic=one.topic,
            outcome=one.outcome.replace(" ", "_"),
            detail=one.detail,
        )
        for one in sent
    ]

    def table() -> str:
        return as_table(("id", "topic", "outcome", "detail"), sent, "it has no dead letters")

    print_list(RedrivenShape, redriven, output, table)
    if not dry_run and any(one.is_refused for one in sent):
        raise typer.Exit(EXIT_REFUSED)


def _chosen(calls: OwnCalls, group: str, ids: list[str]) -> Iterator[MessageRow]:
    """Yield all letters of a group, or the named ones; refuse an unknown id before the first."""
    from escrowmq.cli.redriving import letters

    if not ids:
        yield from letters(calls, group)
        return
    wanted = {
        letter.message_id: letter for letter in letters(calls, group) if letter.message_id in ids
    }
    for message_id in ids:
        if message_id not in wanted:
            raise RequestRefused(
                "message_unknown",
                "escrowmq dlq show lists all",
                group=group,
                message_id=message_id[:64],
            )
    yield from wanted.values()
