"""``escrowmq message``: send a message, find messages, follow a topic."""

from __future__ import annotations

import time
from base64 import b64encode
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import msgspec
import typer

from escrowmq.cli.asking import asking, at, queues_of
from escrowmq.cli.options import (
    DEFAULT_BROKER,
    BrokerOption,
    DryRunOption,
    Output,
    OutputOption,
    TopicOption,
)
from escrowmq.cli.output import (
    aligned,
    as_csv,
    as_facts,
    as_table,
    cell_text,
    column_widths,
    csv_row,
    human_bytes,
    note,
    print_item,
    print_json_line,
    print_list,
)
from escrowmq.cli.preview import PREVIEW_BYTES, clipped, preview
from escrowmq.cli.shapes.broker_shapes import MessageFoundShape, MessageSentShape, MessageShape
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.message_views import SYSTEM_TOPICS
from escrowmq.protocol.message.properties import (
    KEYS,
    TAGS,
    UNIQ_KEY,
    format_properties,
    parse_properties,
    split_keys,
)
from escrowmq.protocol.native.headers import ReadMessagesHeader
from escrowmq.protocol.native.previews import FindMessagesAnswer, FindMessagesHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import MessageRow, QueueRow, SentRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from escrowmq.client.network.native_calls import NativeCalls

app = typer.Typer()

COLUMNS = ("topic", "queue", "offset", "visible", "keys", "tags", "body", "id")
CELL_WIDTH = 60
"""Terminal columns that keys, tags and a body may each take in a table."""

POLL_S = 0.5

SPAN_GROWS = 8
SPAN_MAX = 2**37
"""Span of offsets at which the search for the last messages of a system topic ends.

An offset in the topic of decisions is a log offset times 4,096, so this is 32 MiB of the log.
"""


@app.command()
def send(
    body: Annotated[str, typer.Argument(metavar="BODY")],
    topic: TopicOption,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    keys: Annotated[str, typer.Option(help="Keys, with blanks between them.")] = "",
    tag: Annotated[str, typer.Option(help="Tag of the message.")] = "",
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
) -> None:
    """Send one ordinary message, visible at once."""
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
    stored = None
    if not dry_run:
        with asking(broker) as calls:
            (stored,) = calls.call(NativeCode.SEND_MANY, rows=[row]).rows
    sent = MessageSentShape(
        topic=topic,
        queue_id=stored and stored.queue_id,
        queue_offset=stored and stored.queue_offset,
        unique_key=named[UNIQ_KEY],
        body_bytes=len(row.body),
        is_dry_run=dry_run,
    )
    print_item(sent, output, lambda: _sent_text(sent))


def _sent_text(sent: MessageSentShape) -> str:
    if sent.is_dry_run:
        return f"would send {sent.body_bytes} bytes to topic {sent.topic}"
    where = f"topic {sent.topic}, queue {sent.queue_id}, offset {sent.queue_offset}"
    return f"sent: {where}, id {sent.unique_key}"


@app.command()
def get(
    message_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="An id from send() or the broker, a transaction's id, or a half message's number.",
        ),
    ],
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print one message by any of its ids, even if it is not visible yet."""
    with asking(broker) as calls:
        answer = calls.call(NativeCode.FIND_MESSAGES, FindMessagesHeader(message_id=message_id))
    if not answer.rows:
        raise RequestRefused(
            "message_unknown",
            "this broker never stored it, or retention has deleted it; ask the broker that the"
            " sender names, or search by key: escrowmq message query",
            message_id=message_id[:64],
        )
    found, told = answer.rows[0], answer.header
    state = told.state or ("visible" if found.visible_at_ms else "not_visible")
    whole = MessageFoundShape.of(shape_of(found), state=state)
    print_item(whole, output, lambda: as_facts(_facts(whole)))
    for text in _notes(message_id, told, answer.rows):
        note(text, output)


def _notes(message_id: str, told: FindMessagesAnswer, rows: list[MessageRow]) -> Iterator[str]:
    """Yield notes about the state of the message, and about others with the same id."""
    explain = f"escrowmq txn explain {told.half_offset}"
    yield from {
        "prepared": [f"not visible yet: its transaction is undecided; {explain} says why"],
        "parked": [f"not visible: its transaction is parked; {explain} says why"],
        "rolled_back": ["never visible: its transaction was rolled back"],
        "recalled": ["never visible: its sender recalled it"],
        "waiting": [f"not visible yet: it is delayed until {at(told.due_at_ms)}"],
    }.get(told.state, [])
    if len(rows) > 1 and told.found_by == "transaction_id":
        yield f"its transaction has more messages; escrowmq txn show {message_id} lists them"
    elif len(rows) > 1:
        topics = ", ".join(sorted({row.topic for row in rows[1:]}))
        yield (
            f"{len(rows) - 1} more messages have this id, in {topics}; "
            "escrowmq message query --topic TOPIC --key ID lists them"
        )


@app.command()
def query(
    topic: TopicOption,
    key: Annotated[str, typer.Option(help="One of the message's keys, or its unique key.")],
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the messages of a topic that have a key, newest first."""
    with asking(broker) as calls:
        found = calls.call(NativeCode.FIND_MESSAGES, FindMessagesHeader(topic=topic, key=key)).rows

    def table() -> str:
        return as_table(COLUMNS, [_line(row) for row in found], "no message has this key")

    print_list(MessageShape, map(shape_of, found), output, table)


@app.command()
def tail(
    topic: TopicOption,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    last: Annotated[
        int, typer.Option("-n", min=0, max=1_000, help="Number of messages to begin with.")
    ] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new messages until Ctrl-C.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the newest messages of a topic, from all queues; consumer groups are not affected.

    The topics of half messages, decisions and parked transactions are topics, too:
    RMQ_SYS_TRANS_HALF_TOPIC, RMQ_SYS_TRANS_OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC.
    """
    with asking(broker) as calls:
        queues = queues_of(calls, topic)
        if not queues:
            raise RequestRefused("topic_unknown", "escrowmq topic list shows all", topic=topic)
        if topic in SYSTEM_TOPICS:
            rows, offsets = _last_of_view(calls, topic, queues[0], last)
        else:
            offsets = {row.queue_id: max(row.start, row.end - last) for row in queues}
            rows = _read_on(calls, topic, offsets)[-last:] if last else []
        show = _printer(output, rows)
        while True:
            for row in rows:
                show(row)
            if not follow:
                return
            time.sleep(POLL_S)
            rows = _read_on(calls, topic, offsets)


def _last_of_view(
    calls: NativeCalls, topic: str, queue: QueueRow, last: int
) -> tuple[list[MessageRow], dict[int, int]]:
    """Return the last messages of a system topic, and where to read on.

    Offsets of a system topic have gaps, so reading starts further back until it finds enough.
    """
    span, rows = max(last, 1), []
    while last:
        start = max(queue.end - span, queue.start)
        asked = ReadMessagesHeader(topic=topic, queue_id=0, start=start, end=queue.end)
        rows = list(calls.rows(NativeCode.READ_MESSAGES, asked))[-last:]
        if len(rows) == last or start == queue.start or span >= SPAN_MAX:
            break
        span *= SPAN_GROWS
    return rows, {0: queue.end}


def _printer(output: Output, first: list[MessageRow]) -> Callable[[MessageRow], None]:
    """Print the header; return the function that prints one message.

    The first messages set the column widths of a table.
    """
    if output is Output.JSON:
        return lambda row: print_json_line(shape_of(row))
    if output is Output.CSV:
        typer.echo(as_csv([MessageShape.__struct_fields__]), nl=False)
        return lambda row: typer.echo(as_csv([csv_row(shape_of(row))]), nl=False)
    header = [column.upper() for column in COLUMNS]
    widths = column_widths([header, *map(_cells, first)])
    typer.echo(aligned(header, widths))
    return lambda row: typer.echo(aligned(_cells(row), widths))


def _read_on(calls: NativeCalls, topic: str, offsets: dict[int, int]) -> list[MessageRow]:
    """Read the new messages of all queues, ordered by time, and advance ``offsets``."""
    found: list[MessageRow] = []
    for queue in queues_of(calls, topic):
        start = offsets.get(queue.queue_id, queue.start)
        if start < queue.end:
            asked = ReadMessagesHeader(
                topic=topic, queue_id=queue.queue_id, start=start, end=queue.end
            )
            found += calls.rows(NativeCode.READ_MESSAGES, asked)
            offsets[queue.queue_id] = queue.end
    return sorted(found, key=lambda row: (row.visible_at_ms, row.log_offset))


def _cells(row: MessageRow) -> list[str]:
    return [cell_text(value) for value in _line(row)]


def _line(row: MessageRow) -> tuple[Any, ...]:
    body = preview(row.body[:PREVIEW_BYTES], len(row.body), sys_flag=row.sys_flag, width=CELL_WIDTH)
    place = (row.topic, row.queue_id, row.queue_offset, at(row.visible_at_ms) or "not visible")
    names = (clipped(row.keys, CELL_WIDTH), clipped(row.tags, CELL_WIDTH))
    return (*place, *names, body, row.message_id)


def shape_of(row: MessageRow) -> MessageShape:
    """Convert a message to its JSON shape; a body that is not UTF-8 becomes base64."""
    try:
        body, body_base64 = row.body.decode(), None
    except UnicodeDecodeError:
        body, body_base64 = None, b64encode(row.body).decode()
    return MessageShape.of(
        row,
        keys=list(split_keys(row.keys)),
        body=body,
        body_base64=body_base64,
        body_bytes=len(row.body),
        properties=parse_properties(row.properties.encode()),
    )


def _facts(message: MessageFoundShape) -> dict[str, Any]:
    """Return the text lines for a message, by name."""
    facts: dict[str, Any] = {"state": message.state.replace("_", " ")}
    facts |= msgspec.structs.asdict(message) | facts
    facts["keys"] = " ".join(message.keys)
    facts["body_bytes"] = human_bytes(message.body_bytes)
    for name in ("born_at_ms", "stored_at_ms", "visible_at_ms"):
        facts[name.removesuffix("_ms")] = at(facts.pop(name))
    return facts
