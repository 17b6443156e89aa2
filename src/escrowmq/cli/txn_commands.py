"""``escrowmq txn``: list and explain undecided transactions, and settle them by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.cli.asking import (
    DEFAULT_BROKER,
    BrokerOption,
    DryRunOption,
    asking,
    at,
    whoami,
)
from escrowmq.cli.options import FileOption, SetOption
from escrowmq.cli.output import (
    LineOutput,
    LineOutputOption,
    Output,
    OutputOption,
    as_table,
    note,
    print_item,
    print_json_line,
    print_list,
)
from escrowmq.cli.preview import escaped
from escrowmq.cli.txn_asking import head_of, life_line_of, named
from escrowmq.cli.txn_bulk import (
    LIMIT,
    FilterOption,
    LimitOption,
    OneTransactionArgument,
    YesOption,
    is_one,
    order,
    settle_filtered,
)
from escrowmq.cli.txn_messages import previews_of
from escrowmq.cli.txn_rows import COLUMNS, head_facts, line_of, shape_of
from escrowmq.cli.txn_settling import configured_ledgers, settle_one
from escrowmq.cli.txn_shapes import (
    EventShape,
    ResumedShape,
    TransactionExplainedShape,
    TransactionShape,
    TransactionShownShape,
    WatchedShape,
)

if TYPE_CHECKING:
    from escrowmq.client.own_calls import OwnCalls
    from escrowmq.protocol.own_headers import LifeLineAnswer
    from escrowmq.protocol.own_previews import PreviewRow
    from escrowmq.protocol.own_rows import TransactionRow

app = typer.Typer(help="See undecided transactions, and settle them.", no_args_is_help=True)

#: Rows in one request: the broker reads their ids from its log.
PAGE_ROWS = 1_000
TransactionArgument = Annotated[
    str, typer.Argument(metavar="TRANSACTION", help="Its id, or the number of a half message.")
]
ReasonOption = Annotated[str, typer.Option(help="Why; it is kept in the log.")]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Against its ledger; that is kept in the log, too.")
]


@app.callback()
def txn() -> None:
    """See undecided transactions, and settle them."""


@app.command(name="list")
def list_(
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
    *,
    states: Annotated[
        str, typer.Option(help="With commas: prepared, parked, committed, rolled_back.")
    ] = "prepared,parked",
    group: Annotated[str, typer.Option(help="Only this producer group's.")] = "",
    older_than: Annotated[
        int, typer.Option(metavar="SECONDS", min=0, help="Only those stored so long ago.")
    ] = 0,
    nobody_online: Annotated[
        bool, typer.Option("--nobody-online", help="Only those that nobody can be asked about.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many, at most.")] = 100,
    messages: Annotated[
        bool, typer.Option(help="Topic, keys, tags and body of each one's first message.")
    ] = True,
) -> None:
    """Print undecided transactions and their messages, the oldest first."""

    def is_wanted(row: TransactionRow) -> bool:
        return not nobody_online or not (row.ledger or row.producers_online)

    with asking(broker) as calls:
        found = list(islice(_listed(calls, states, group, older_than, is_wanted), limit + 1))
        rows = found[:limit]
        held = previews_of(calls, [row.half_offset for row in rows]) if messages else {}

    def table() -> str:
        return as_table(COLUMNS, [line_of(row, held) for row in rows], "nothing is undecided")

    print_list(TransactionShape, (shape_of(row, held) for row in rows), output, table)
    if len(found) > limit:
        note(f"only the {limit} oldest; --limit says how many", output)


@app.command()
def watch(
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    every: Annotated[float, typer.Option(min=0.2, max=3_600, help="Seconds between looks.")] = 2.0,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many, at most.")] = 20,
    output: LineOutputOption = LineOutput.TABLE,
) -> None:
    """Print undecided transactions repeatedly until Ctrl-C; with -o json one line each time."""
    with asking(broker) as calls:
        while True:
            rows = list(islice(_listed(calls, "prepared,parked"), limit))
            held = previews_of(calls, [row.half_offset for row in rows])
            if output is LineOutput.JSON:
                shapes = [shape_of(row, held) for row in rows]
                at_ms = time.time_ns() // 1_000_000
                print_json_line(WatchedShape(at_ms=at_ms, transactions=shapes))
            else:
                lines = [line_of(row, held) for row in rows]
                # Move the cursor home and clear the screen; every terminal knows these sequences.
                typer.echo("\x1b[H\x1b[J", nl=False)
                typer.echo(as_table(COLUMNS, lines, "nothing is undecided"))
            time.sleep(every)


@app.command()
def show(
    transaction: TransactionArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the messages of a transaction, and its history."""
    import msgspec

    from escrowmq.cli import txn_messages as messages

    with asking(broker) as calls:
        head, events = life_line_of(calls, transaction)
        held = messages.previews_of(
            calls, [head.half_offset], messages_max=messages.MESSAGES_SHOWN
        ).get(head.half_offset, [])
    happened = [EventShape(**msgspec.structs.asdict(event)) for event in events]
    if output is Output.CSV:
        print_list(EventShape, happened, output, str)
        return
    shown = TransactionShownShape(**head_facts(head, held), events=happened)
    print_item(shown, output, lambda: _shown_text(shown, held))


def _shown_text(shown: TransactionShownShape, held: Sequence[PreviewRow]) -> str:
    from escrowmq.cli import txn_messages as messages

    lines = [messages.message_line(row) for row in held]
    events = [(at(event.at_ms), event.event, event.by, event.detail) for event in shown.events]
    left_out = [f"and {shown.messages_left_out} more"] if shown.messages_left_out else []
    return "\n".join(
        [
            escaped(f"{shown.id}: {shown.state}, half {shown.half}, group {shown.group}"),
            "",
            as_table(messages.MESSAGE_COLUMNS, lines, messages.UNKNOWN),
            *left_out,
            "",
            as_table(("at", "event", "by", "detail"), events),
        ]
    )


@app.command()
def explain(
    transaction: TransactionArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain why a transaction is in its state, and when and why its next check comes."""
    from escrowmq.cli import txn_messages as messages
    from escrowmq.cli.ledger_text import ask_ledgers, ledger_shapes
    from escrowmq.cli.txn_explain import explained, what_matters
    from escrowmq.protocol.own import OwnCode

    with asking(broker) as calls:
        head = head_of(calls, transaction)
        events = what_matters(calls, head)
        told = calls.call(OwnCode.STATUS).header
        before = _due_before(calls, head, told.now_ms) if head.producers_online else 0
        ledgers = ask_ledgers(calls)
        held = messages.previews_of(calls, [head.half_offset]).get(head.half_offset, [])
    lines = explained(head, events, told, due_before=before, ledgers=ledgers)
    lines[1:1] = messages.sentence(held)
    explanation = TransactionExplainedShape(
        **head_facts(head, held),
        words=" ".join(lines),
        ledger_reports=ledger_shapes(head.ledger, ledgers),
    )
    print_item(explanation, output, lambda: "\n".join(map(escaped, lines)))


@app.command()
def commit(
    reason: ReasonOption,
    transaction: OneTransactionArgument = None,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    filter_: FilterOption = None,
    limit: LimitOption = LIMIT,
    yes: YesOption = False,
    force: ForceOption = False,
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
    file: FileOption = None,
    set_: SetOption = None,
) -> None:
    """Commit a transaction by hand: its messages become visible. Its ledger must agree.

    Name one transaction, or several with --filter, which asks for confirmation. Ledgers are those
    in the config: [ledger.NAME]. Exit codes with --filter: 1 if some were refused, 3 if the broker
    became unavailable before the end, 4 if it is not known whether some were decided.
    """
    ledgers = configured_ledgers(file, set_)
    if is_one(transaction, filter_):
        settle_one(
            transaction or "",
            "commit",
            reason=reason,
            broker=broker,
            configured=ledgers,
            output=output,
            force=force,
            dry_run=dry_run,
        )
    else:
        settle_filtered(
            broker,
            ledgers,
            order("commit", filter_, reason, limit, output, force=force, dry_run=dry_run, yes=yes),
        )


@app.command()
def rollback(
    reason: ReasonOption,
    transaction: OneTransactionArgument = None,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    filter_: FilterOption = None,
    limit: LimitOption = LIMIT,
    yes: YesOption = False,
    force: ForceOption = False,
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
    file: FileOption = None,
    set_: SetOption = None,
) -> None:
    """Roll back a transaction by hand: drop its messages. Without a ledger row, fence it first.

    Name one transaction, or several with --filter, which asks for confirmation. Ledgers are those
    in the config: [ledger.NAME]. Exit codes with --filter: 1 if some were refused, 3 if the broker
    became unavailable before the end, 4 if it is not known whether some were decided.
    """
    ledgers = configured_ledgers(file, set_)
    if is_one(transaction, filter_):
        settle_one(
            transaction or "",
            "rollback",
            reason=reason,
            broker=broker,
            configured=ledgers,
            output=output,
            force=force,
            dry_run=dry_run,
        )
    else:
        settle_filtered(
            broker,
            ledgers,
            order(
                "rollback", filter_, reason, limit, output, force=force, dry_run=dry_run, yes=yes
            ),
        )


@app.command()
def resume(
    transaction: TransactionArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
) -> None:
    """Resume a parked transaction: its checks start again from the first one."""
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_hand_headers import ByHandHeader

    with asking(broker) as calls:
        is_allowed, words = True, f"{transaction} is checked again"
        if dry_run:
            head = head_of(calls, transaction)
            is_allowed = head.state == "parked"
            would = "would" if is_allowed else "would refuse to"
            words = f"{would} have {head.transaction_id} checked again: it is {head.state}"
        else:
            calls.call(OwnCode.RESUME, ByHandHeader(**named(transaction), by=whoami()))
    resumed = ResumedShape(transaction=transaction, is_allowed=is_allowed, is_dry_run=dry_run)
    print_item(resumed, output, lambda: escaped(words))


def _any(_row: TransactionRow) -> bool:
    return True


def _listed(
    calls: OwnCalls,
    states: str,
    group: str = "",
    older_than: int = 0,
    is_wanted: Callable[[TransactionRow], bool] = _any,
) -> Iterator[TransactionRow]:
    """Yield transactions, the oldest first, page by page, so that not all are in memory at once."""
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import ListTransactionsHeader

    asked = ListTransactionsHeader(
        states=states, with_ids=True, limit=PAGE_ROWS, producer_group=group
    )
    for page in calls.pages(OwnCode.LIST_TRANSACTIONS, asked):
        youngest_at_ms = page.header.now_ms - older_than * 1_000
        for row in page.rows:
            if older_than and row.stored_at_ms > youngest_at_ms:
                return
            if is_wanted(row):
                yield row


def _due_before(calls: OwnCalls, head: LifeLineAnswer, now_ms: int) -> int:
    """Count the transactions of its group that have been due for longer, within one page."""
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import ListTransactionsHeader

    if head.state != "prepared" or head.next_check_at_ms is None or head.next_check_at_ms > now_ms:
        return 0
    asked = ListTransactionsHeader(states="prepared", producer_group=head.producer_group)
    listed = calls.call(OwnCode.LIST_TRANSACTIONS, asked)
    mine = (head.next_check_at_ms - listed.header.now_ms, head.half_offset)
    return sum(1 for row in listed.rows if (row.wait_ms, row.half_offset) < mine and not row.ledger)
