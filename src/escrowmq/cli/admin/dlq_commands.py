"""``escrowmq dlq``: list the dead letters of consumer groups, and send them again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.cli.asking import asking, at, queues_of, whoami
from escrowmq.cli.options import DEFAULT_BROKER, BrokerOption, DryRunOption, Output, OutputOption
from escrowmq.cli.output import as_table, print_list, print_table
from escrowmq.cli.preview import PREVIEW_BYTES, preview
from escrowmq.cli.shapes.broker_shapes import DeadLetterShape, DeadLettersShape, RedrivenShape
from escrowmq.client.consumer import redriving
from escrowmq.model.errors import RequestRefused
from escrowmq.model.topic_names import DLQ_PREFIX
from escrowmq.protocol.message.properties import split_keys
from escrowmq.protocol.native.requests import NativeCode

if TYPE_CHECKING:
    from escrowmq.client.network.native_calls import NativeCalls
    from escrowmq.protocol.native.rows import MessageRow

app = typer.Typer()

EXIT_REFUSED = 1
NONE = "it has no dead letters"
COLUMNS = (
    ("id", "message_id"),
    "topic",
    ("given up", lambda letter: at(letter.given_up_at_ms)),
    "tries",
    ("sent again", "was_sent_again"),
    ("keys", lambda letter: " ".join(letter.keys)),
    ("body", "body_preview"),
)
BODY_WIDTH = 60
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="A consumer group.")]
LimitOption = Annotated[int, typer.Option(min=1, max=1_000_000, help="Most dead letters to take.")]
TargetOption = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="group|topic",
        help="Send to this group only, or to all groups of the first topic.",
    ),
]


@app.command(name="list")
def list_(broker: BrokerOption = DEFAULT_BROKER, output: OutputOption = Output.TABLE) -> None:
    """Print every group that has dead letters, and how many it has."""
    counts: dict[str, int] = {}
    with asking(broker) as calls:
        for topic in calls.rows(NativeCode.LIST_TOPICS):
            if topic.topic.startswith(DLQ_PREFIX):
                queues = queues_of(calls, topic.topic)
                counts[topic.topic] = sum(queue.end - queue.start for queue in queues)
    groups = [
        DeadLettersShape(group=topic.removeprefix(DLQ_PREFIX), letters=count, topic=topic)
        for topic, count in counts.items()
    ]
    columns = ("group", "letters", "topic")
    print_table(DeadLettersShape, groups, output, columns, "no group has given anything up")


@app.command()
def show(
    group: GroupArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
    *,
    limit: LimitOption = 100,
) -> None:
    """Print the dead letters of a group, the oldest first, and whether each was sent again."""
    with asking(broker) as calls:
        found = [
            DeadLetterShape(
                message_id=letter.message_id,
                topic=redriving.first_topic(letter),
                given_up_at_ms=letter.stored_at_ms,
                tries=letter.reconsume_times,
                was_sent_again=redriving.was_sent(calls, letter),
                keys=list(split_keys(letter.keys)),
                body_preview=_preview(letter),
            )
            for letter in islice(redriving.letters(calls, group), limit)
        ]

    print_table(DeadLetterShape, found, output, COLUMNS, NONE)


def _preview(letter: MessageRow) -> str:
    start = letter.body[:PREVIEW_BYTES]
    return preview(start, len(letter.body), sys_flag=letter.sys_flag, width=BODY_WIDTH)


@app.command()
def redrive(
    group: GroupArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
    *,
    id_: Annotated[
        list[str] | None,
        typer.Option("--id", help="Take only the letter with this id; may be repeated."),
    ] = None,
    limit: LimitOption = 1_000,
    to: TargetOption = "group",
    dry_run: DryRunOption = False,
) -> None:
    """Send dead letters again, the oldest first; repeating this sends none of them twice.

    Exit code 1: the broker refused some of them.
    """
    if to not in set(redriving.RedriveTarget):
        raise RequestRefused("target_unknown", "say --to group or --to topic", to=to[:64])
    target = redriving.RedriveTarget(to)
    with asking(broker) as calls:
        found = islice(_chosen(calls, group, id_ or []), limit)
        if dry_run:
            sent = [
                redriving.RedrivenLetter(
                    letter.message_id,
                    redriving.target_topic(letter, group, target),
                    "sent before" if redriving.was_sent(calls, letter) else "would be sent",
                )
                for letter in found
            ]
        else:
            sent = list(redriving.redrive(calls, found, group, target, whoami()))
    redriven = [RedrivenShape.of(one, outcome=one.outcome.replace(" ", "_")) for one in sent]

    def table() -> str:
        return as_table(("id", "topic", "outcome", "detail"), sent, NONE)

    print_list(RedrivenShape, redriven, output, table)
    if not dry_run and any(one.outcome not in redriving.SENT for one in sent):
        raise typer.Exit(EXIT_REFUSED)


def _chosen(calls: NativeCalls, group: str, ids: list[str]) -> Iterator[MessageRow]:
    """Yield all letters of a group, or the named ones; refuse an unknown id before the first."""
    if not ids:
        yield from redriving.letters(calls, group)
        return
    wanted = {
        letter.message_id: letter
        for letter in redriving.letters(calls, group)
        if letter.message_id in ids
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
