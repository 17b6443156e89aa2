"""``escrowmq txn``: list and explain undecided transactions, and decide them by hand."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.cli import options
from escrowmq.cli.asking import asking, at, whoami
from escrowmq.cli.output import as_table, note, print_item, print_json_line, print_list
from escrowmq.cli.preview import escaped
from escrowmq.cli.txn import messages as txn_messages
from escrowmq.cli.txn import shapes as txn_shapes
from escrowmq.cli.txn.asking import head_of, life_line_of, named, transaction_pages
from escrowmq.cli.txn.bulk import BulkOrder, decide_filtered
from escrowmq.cli.txn.deciding import ByHandOptions, decide_one
from escrowmq.cli.txn.rows import COLUMNS, head_facts, line_of, shape_of
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.native.headers import LifeLineAnswer, ListTransactionsHeader
from escrowmq.protocol.native.operator_headers import ByHandHeader
from escrowmq.protocol.native.requests import NativeCode

if TYPE_CHECKING:
    from escrowmq.client.network.native_calls import NativeCalls
    from escrowmq.protocol.native.previews import PreviewRow
    from escrowmq.protocol.native.rows import TransactionRow

app = typer.Typer()

TransactionArgument = Annotated[
    str, typer.Argument(metavar="TRANSACTION", help="Its id, or the number of a half message.")
]


@app.command(name="list")
def list_(
    broker: options.BrokerOption = options.DEFAULT_BROKER,
    output: options.OutputOption = options.Output.TABLE,
    *,
    states: Annotated[
        str, typer.Option(help="States, with commas: prepared, parked, committed, rolled_back.")
    ] = "prepared,parked",
    group: Annotated[str, typer.Option(help="List only this producer group.")] = "",
    older_than: Annotated[
        int, typer.Option(metavar="SECONDS", min=0, help="List only those that are older.")
    ] = 0,
    nobody_online: Annotated[
        bool,
        typer.Option(
            "--nobody-online", help="List only those without a ledger and an online producer."
        ),
    ] = False,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Most transactions to list.")
    ] = 100,
    messages: Annotated[
        bool, typer.Option(help="Show topic, keys, tags and body of the first message.")
    ] = True,
) -> None:
    """Print undecided transactions and their messages, the oldest first."""
    with asking(broker) as calls:
        listed = _listed(calls, states, group, older_than)
        if nobody_online:
            listed = (row for row in listed if not (row.ledger or row.producers_online))
        found = list(islice(listed, limit + 1))
        rows = found[:limit]
        held = (
            txn_messages.previews_of(calls, [row.half_offset for row in rows]) if messages else {}
        )

    def table() -> str:
        return as_table(COLUMNS, [line_of(row, held) for row in rows], "nothing is undecided")

    print_list(txn_shapes.TransactionShape, (shape_of(row, held) for row in rows), output, table)
    if len(found) > limit:
        note(f"these are the {limit} oldest transactions; --limit sets how many", output)


@app.command()
def watch(
    broker: options.BrokerOption = options.DEFAULT_BROKER,
    *,
    every: Annotated[
        float, typer.Option(min=0.2, max=3_600, help="Seconds between two lists.")
    ] = 2.0,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Most transactions to list.")] = 20,
    output: options.LineOutputOption = options.LineOutput.TABLE,
) -> None:
    """Print undecided transactions repeatedly until Ctrl-C; with -o json one line each time."""
    with asking(broker) as calls:
        while True:
            rows = list(islice(_listed(calls, "prepared,parked"), limit))
            held = txn_messages.previews_of(calls, [row.half_offset for row in rows])
            if output is options.LineOutput.JSON:
                shapes = [shape_of(row, held) for row in rows]
                at_ms = time.time_ns() // 1_000_000
                print_json_line(txn_shapes.WatchedShape(at_ms=at_ms, transactions=shapes))
            else:
                lines = [line_of(row, held) for row in rows]
                # Move the cursor home and clear the screen; every terminal knows these sequences.
                typer.echo("\x1b[H\x1b[J", nl=False)
                typer.echo(as_table(COLUMNS, lines, "nothing is undecided"))
            time.sleep(every)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOptions:
    """Options of the commands that print one transaction."""

    transaction: TransactionArgument
    broker: options.BrokerOption = options.DEFAULT_BROKER
    output: options.OutputOption = options.Output.TABLE


@app.command()
@options.grouped
def show(given: TransactionOptions) -> None:
    """Print the messages of a transaction, and its history."""
    with asking(given.broker) as calls:
        head, events = life_line_of(calls, given.transaction)
        held = txn_messages.previews_of(
            calls, [head.half_offset], messages_max=txn_messages.MESSAGES_SHOWN
        ).get(head.half_offset, [])
    happened = [txn_shapes.EventShape.of(event) for event in events]
    if given.output is options.Output.CSV:
        print_list(txn_shapes.EventShape, happened, given.output, str)
        return
    shown = txn_shapes.TransactionShownShape(**head_facts(head, held), events=happened)
    print_item(shown, given.output, lambda: _shown_text(shown, held))


def _shown_text(shown: txn_shapes.TransactionShownShape, held: Sequence[PreviewRow]) -> str:
    lines = [txn_messages.message_line(row) for row in held]
    events = [(at(event.at_ms), event.event, event.by, event.detail) for event in shown.events]
    left_out = [f"and {shown.messages_left_out} more"] if shown.messages_left_out else []
    return "\n".join(
        [
            escaped(f"{shown.id}: {shown.state}, half {shown.half}, group {shown.group}"),
            "",
            as_table(txn_messages.MESSAGE_COLUMNS, lines, txn_messages.UNKNOWN),
            *left_out,
            "",
            as_table(("at", "event", "by", "detail"), events),
        ]
    )


@app.command()
@options.grouped
def explain(given: TransactionOptions) -> None:
    """Explain why a transaction is in its state, and when and why its next check comes."""
    from escrowmq.cli.admin.ledger_text import ask_ledgers, ledger_shapes
    from escrowmq.cli.txn.explain import explained, what_matters

    with asking(given.broker) as calls:
        head = head_of(calls, given.transaction)
        events = what_matters(calls, head)
        told = calls.call(NativeCode.STATUS).header
        before = _due_before(calls, head, told.now_ms) if head.producers_online else 0
        ledgers = ask_ledgers(calls)
        held = txn_messages.previews_of(calls, [head.half_offset]).get(head.half_offset, [])
    lines = explained(head, events, told, due_before=before, ledgers=ledgers)
    lines[1:1] = txn_messages.sentence(held)
    explanation = txn_shapes.TransactionExplainedShape(
        **head_facts(head, held),
        words=" ".join(lines),
        ledger_reports=ledger_shapes(head.ledger, ledgers),
    )
    print_item(explanation, given.output, lambda: "\n".join(map(escaped, lines)))


#: Help that commit and rollback share.
HOW = """Its ledger must agree, unless --force is given. A rollback without a ledger row fences the
transaction first. Name one transaction, or several with --filter, which asks for confirmation.
Ledgers are those in the config: [ledger.NAME]. Exit codes with --filter: 1 if some were refused, 3
if the broker became unavailable before the end, 4 if it is not known whether some were decided."""


@app.command(help=f"Commit a transaction by hand: its messages become visible.\n\n{HOW}")
@options.grouped
def commit(given: ByHandOptions) -> None:
    """Make the messages visible."""
    _decide("commit", given)


@app.command(help=f"Roll back a transaction by hand: its messages are dropped.\n\n{HOW}")
@options.grouped
def rollback(given: ByHandOptions) -> None:
    """Drop the messages; fence a transaction whose ledger has no row."""
    _decide("rollback", given)


def _decide(resolution: str, given: ByHandOptions) -> None:
    from escrowmq.model.resolution import Resolution

    if (given.transaction is None) == (not given.filter_):
        raise RequestRefused(
            "bad_option", "name one transaction, or some with --filter", option="TRANSACTION"
        )
    if given.transaction is not None:
        decide_one(given.transaction, Resolution(resolution), given)
    else:
        decide_filtered(BulkOrder(Resolution(resolution), given))


@app.command()
def resume(
    transaction: TransactionArgument,
    broker: options.BrokerOption = options.DEFAULT_BROKER,
    *,
    output: options.OutputOption = options.Output.TABLE,
    dry_run: options.DryRunOption = False,
) -> None:
    """Resume a parked transaction: its checks start again from the first one."""
    with asking(broker) as calls:
        is_allowed, words = True, f"{transaction} is checked again"
        if dry_run:
            head = head_of(calls, transaction)
            is_allowed = head.state == "parked"
            would = "would" if is_allowed else "would refuse to"
            words = f"{would} have {head.transaction_id} checked again: it is {head.state}"
        else:
            calls.call(NativeCode.RESUME, ByHandHeader(**named(transaction), by=whoami()))
    resumed = txn_shapes.ResumedShape(
        transaction=transaction, is_allowed=is_allowed, is_dry_run=dry_run
    )
    print_item(resumed, output, lambda: escaped(words))


def _listed(
    calls: NativeCalls, states: str, group: str = "", older_than: int = 0
) -> Iterator[TransactionRow]:
    """Yield transactions, the oldest first."""
    for page in transaction_pages(calls, states, group):
        youngest_at_ms = page.header.now_ms - older_than * 1_000
        for row in page.rows:
            if older_than and row.stored_at_ms > youngest_at_ms:
                return
            yield row


def _due_before(calls: NativeCalls, head: LifeLineAnswer, now_ms: int) -> int:
    """Count the transactions of the same group that have been due longer, within one page."""
    if head.state != "prepared" or head.next_check_at_ms is None or head.next_check_at_ms > now_ms:
        return 0
    asked = ListTransactionsHeader(states="prepared", producer_group=head.producer_group)
    listed = calls.call(NativeCode.LIST_TRANSACTIONS, asked)
    mine = (head.next_check_at_ms - listed.header.now_ms, head.half_offset)
    return sum(1 for row in listed.rows if (row.wait_ms, row.half_offset) < mine and not row.ledger)
