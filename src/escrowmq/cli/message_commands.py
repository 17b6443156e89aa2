"""``escrowmq message``: send one, find some, watch them come."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from escrowmq.cli.asking import DEFAULT_BROKER, BrokerOption, DryRunOption, asking, at
from escrowmq.cli.output import Output, OutputOption, as_csv, show_facts, show_rows
from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from escrowmq.client.own_calls import OwnCalls
    from escrowmq.protocol.own_rows import MessageRow

app = typer.Typer(help="Send a message, find some, watch them come.", no_args_is_help=True)

COLUMNS = ("topic", "queue", "offset", "visible", "keys", "tags", "body", "id")
BODY_CHARS_MAX = 60
POLL_S = 0.5
TopicOption = Annotated[str, typer.Option("--topic", help="In which topic.")]


@app.callback()
def message() -> None:
    """Send a message, find some, watch them come."""


@app.command()
def send(
    body: Annotated[str, typer.Argument(metavar="BODY")],
    topic: TopicOption,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    keys: Annotated[str, typer.Option(help="With blanks between them.")] = "",
    tag: Annotated[str, typer.Option(help="Its tag.")] = "",
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
) -> None:
    """Send one ordinary message, visible at once."""
    from uuid import uuid4

    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_rows import SentRow
    from escrowmq.protocol.properties import KEYS, TAGS, UNIQ_KEY, format_properties

    named = {UNIQ_KEY: uuid4().hex.upper(), KEYS: keys, TAGS: tag}
    properties = format_properties({name: value for name, value in named.items() if value})
    row = SentRow(
        topic=topic,
        queue_id=-1,
        body=body.encode(),
        properties=properties.decode(),
        flag=0,
        sys_flag=0,
        born_at_ms=time.time_ns() // 1_000_000,
    )
    if dry_run:
        typer.echo(f"would send {len(row.body)} bytes to topic {topic}")
        return
    with asking(broker) as calls:
        (stored,) = calls.call(OwnCode.SEND_MANY, rows=[row]).rows
    if output is Output.TABLE:
        typer.echo(f"sent: topic {topic}, queue {stored.queue_id}, offset {stored.queue_offset}")
    else:
        place = {"queue": stored.queue_id, "offset": stored.queue_offset}
        show_facts({"topic": topic, **place, "unique_key": named[UNIQ_KEY]}, output)


@app.command()
def get(
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE_ID")],
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print one message by its id, also if it is not visible yet."""
    from escrowmq.protocol.own_headers import FindMessagesHeader

    with asking(broker) as calls:
        found = _find(calls, FindMessagesHeader(message_id=message_id))
    if not found:
        raise RequestRefused(
            "message_unknown", "it is not here, or no longer", message_id=message_id[:64]
        )
    show_facts(_all(found[0]), output)


@app.command()
def query(
    topic: TopicOption,
    key: Annotated[str, typer.Option(help="One of its keys, or its unique key.")],
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the messages of a topic that have a key, newest first."""
    from escrowmq.protocol.own_headers import FindMessagesHeader

    with asking(broker) as calls:
        found = _find(calls, FindMessagesHeader(topic=topic, key=key))
    show_rows(COLUMNS, [_line(row) for row in found], output, "no message has this key")


@app.command()
def tail(
    topic: TopicOption,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    last: Annotated[int, typer.Option("-n", min=0, max=1_000, help="Begin so many back.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until Ctrl-C.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the newest messages of a topic, each queue's; no consumer group is moved."""
    with asking(broker) as calls:
        offsets = {row.queue_id: max(row.start, row.end - last) for row in _queues(calls, topic)}
        if not offsets:
            raise RequestRefused("topic_unknown", "escrowmq topic list shows all", topic=topic)
        rows = _read_on(calls, topic, offsets)[-last:] if last else []
        if output is Output.CSV:
            typer.echo(as_csv([COLUMNS]), nl=False)
        while True:
            _print(rows, output)
            if not follow:
                return
            time.sleep(POLL_S)
            rows = _read_on(calls, topic, offsets)


def _queues(calls: OwnCalls, topic: str) -> list[Any]:
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import ListQueuesHeader

    return list(calls.rows(OwnCode.LIST_QUEUES, ListQueuesHeader(topic=topic)))


def _read_on(calls: OwnCalls, topic: str, offsets: dict[int, int]) -> list[MessageRow]:
    """What is new in each queue, by time; moves the offsets."""
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import ReadMessagesHeader

    found: list[MessageRow] = []
    for queue in _queues(calls, topic):
        start = offsets.get(queue.queue_id, queue.start)
        if start < queue.end:
            asked = ReadMessagesHeader(
                topic=topic, queue_id=queue.queue_id, start=start, end=queue.end
            )
            found += calls.rows(OwnCode.READ_MESSAGES, asked)
            offsets[queue.queue_id] = queue.end
    return sorted(found, key=lambda row: (row.visible_at_ms, row.log_offset))


def _print(rows: list[MessageRow], output: Output) -> None:
    for row in rows:
        if output is Output.JSON:
            typer.echo(json.dumps(_all(row)))
        elif output is Output.CSV:
            typer.echo(as_csv([_line(row)]), nl=False)
        else:
            typer.echo("  ".join("-" if not one else str(one) for one in _line(row)))


def _find(calls: OwnCalls, header: Any) -> list[MessageRow]:  # noqa: ANN401 - a FindMessagesHeader
    from escrowmq.protocol.own import OwnCode

    return calls.call(OwnCode.FIND_MESSAGES, header).rows


def _line(row: MessageRow) -> tuple[Any, ...]:
    shown = row.body[: BODY_CHARS_MAX * 4].decode(errors="replace")[:BODY_CHARS_MAX]
    visible = at(row.visible_at_ms) or "not visible"
    place = (row.topic, row.queue_id, row.queue_offset, visible)
    return (*place, row.keys, row.tags, shown.replace("\n", " "), row.message_id)


def _all(row: MessageRow) -> dict[str, Any]:
    import msgspec

    facts = msgspec.structs.asdict(row)
    facts["body"] = row.body.decode(errors="replace")
    facts["properties"] = {
        name: value
        for name, _, value in (pair.partition("\x01") for pair in row.properties.split("\x02"))
        if name
    }
    return facts
