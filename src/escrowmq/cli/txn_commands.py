"""``escrowmq txn``: every undecided transaction, why it waits, and settling one by hand."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from escrowmq.cli.asking import (
    DEFAULT_BROKER,
    BrokerOption,
    DryRunOption,
    asking,
    at,
    duration,
    whoami,
)
from escrowmq.cli.options import FileOption, SetOption
from escrowmq.cli.output import Output, OutputOption, show_facts, show_rows

if TYPE_CHECKING:
    from escrowmq.client.ledger_table import SqlLedger
    from escrowmq.client.outgoing import Resolution
    from escrowmq.client.own_calls import OwnCalls
    from escrowmq.pipeline.ledger_config import LedgerConfig
    from escrowmq.protocol.own_headers import LifeLineAnswer
    from escrowmq.protocol.own_rows import EventRow, TransactionRow

app = typer.Typer(help="See undecided transactions, and settle them.", no_args_is_help=True)

COLUMNS = ("half", "state", "age", "group", "checks", "next check", "producers", "ledger", "id")
#: For programs: durations in milliseconds.
RAW_COLUMNS = (
    *COLUMNS[:2],
    "age_ms",
    *COLUMNS[3:5],
    "next_check_in_ms",
    *COLUMNS[6:],
)
STATES = ("prepared", "committed", "rolled_back", "parked")
NEVER_MS = 10**15
#: Rows that the broker is asked for at a time: their ids are read from its log.
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
) -> None:
    """Print undecided transactions, the oldest first."""

    def is_wanted(row: TransactionRow) -> bool:
        return not nobody_online or not (row.ledger or row.producers_online)

    with asking(broker) as calls:
        found = list(islice(_listed(calls, states, group, older_than, is_wanted), limit + 1))
    rows = found[:limit]
    if output is Output.TABLE:
        show_rows(COLUMNS, [_line(row) for row in rows], output, "nothing is undecided")
    else:
        show_rows(RAW_COLUMNS, [_raw(row) for row in rows], output)
    if len(found) > limit:
        typer.echo(f"only the {limit} oldest; --limit says how many", err=True)


@app.command()
def watch(
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    every: Annotated[float, typer.Option(min=0.2, max=3_600, help="Seconds between looks.")] = 2.0,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many, at most.")] = 20,
) -> None:
    """Print what is undecided again and again, until Ctrl-C."""
    with asking(broker) as calls:
        while True:
            rows = list(islice(_listed(calls, "prepared,parked"), limit))
            # Home, and clear what is below: the same on every terminal that is one.
            typer.echo("\x1b[H\x1b[J", nl=False)
            show_rows(COLUMNS, [_line(row) for row in rows], Output.TABLE, "nothing is undecided")
            time.sleep(every)


@app.command()
def show(
    transaction: TransactionArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print all that happened to a transaction."""
    with asking(broker) as calls:
        head, events = _life_line(calls, transaction)
    rows = [(at(event.at_ms), event.event, event.by, event.detail) for event in events]
    if output is Output.TABLE:
        typer.echo(
            f"{head.transaction_id}: {head.state}, half {head.half_offset}, "
            f"group {head.producer_group}\n"
        )
    show_rows(("at", "event", "by", "detail"), rows, output)


@app.command()
def explain(
    transaction: TransactionArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say in words why a transaction is as it is, when its next check comes and why then."""
    from escrowmq.cli.txn_explain import explained, what_matters
    from escrowmq.protocol.own import OwnCode

    with asking(broker) as calls:
        head = _head(calls, transaction)
        events = what_matters(calls, head)
        told = calls.call(OwnCode.STATUS).header
        before = _due_before(calls, head, told.now_ms) if head.producers_online else 0
    lines = explained(head, events, told, due_before=before)
    if output is Output.TABLE:
        typer.echo("\n".join(lines))
    else:
        facts = {"id": head.transaction_id, "state": head.state, "words": " ".join(lines)}
        show_facts({**facts, "next_check_at_ms": head.next_check_at_ms}, output)


@app.command()
def commit(
    transaction: TransactionArgument,
    reason: ReasonOption,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    file: FileOption = None,
    set_: SetOption = None,
) -> None:
    """Make a transaction's messages visible, by hand; its ledger must say so, too.

    Ledgers are those of the config: [ledger.NAME].
    """
    ledgers = _configured(file, set_)
    _settle(transaction, "commit", reason, broker, ledgers, force=force, dry_run=dry_run)


@app.command()
def rollback(
    transaction: TransactionArgument,
    reason: ReasonOption,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    file: FileOption = None,
    set_: SetOption = None,
) -> None:
    """Drop a transaction's messages, by hand; where its ledger has no row, it is fenced off first.

    Ledgers are those of the config: [ledger.NAME].
    """
    ledgers = _configured(file, set_)
    _settle(transaction, "rollback", reason, broker, ledgers, force=force, dry_run=dry_run)


@app.command()
def resume(
    transaction: TransactionArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    dry_run: DryRunOption = False,
) -> None:
    """Have a parked transaction checked again, from the first check."""
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_hand_headers import ByHandHeader

    with asking(broker) as calls:
        if dry_run:
            head = _head(calls, transaction)
            would = "would" if head.state == "parked" else "would refuse to"
            typer.echo(f"{would} have {head.transaction_id} checked again: it is {head.state}")
            return
        calls.call(OwnCode.RESUME, ByHandHeader(**_named(transaction), by=whoami()))
    typer.echo(f"{transaction} is checked again")


def _configured(file: Path | None, flags: list[str] | None) -> Mapping[str, LedgerConfig]:
    from escrowmq.cli.config import load

    return load(file=file, environ=os.environ, flags=flags or ()).ledgers


def _settle(
    transaction: str,
    resolution: str,
    reason: str,
    broker: str,
    configured: Mapping[str, LedgerConfig],
    *,
    force: bool,
    dry_run: bool,
) -> None:
    from escrowmq.cli.ledgers_given import open_ledgers, usable
    from escrowmq.client.outgoing import Resolution
    from escrowmq.client.settle_by_hand import settle_by_hand

    with asking(broker) as calls:
        head = _head(calls, transaction)
        given = open_ledgers(configured) if head.ledger else []
        if dry_run:
            typer.echo(_would(head, Resolution(resolution), usable(given), force=force))
        else:
            told = settle_by_hand(
                calls,
                usable(given),
                half_offset=head.half_offset,
                resolution=Resolution(resolution),
                reason=reason,
                by=whoami(),
                force=force,
            )
            before = "had been " if told.is_repeated else ""
            typer.echo(f"{transaction} {before}{told.decided} by {told.decided_by}")
    for one in given:
        if one.fault:
            typer.echo(f"ledger {one.name} could not be asked: {one.fault}: {one.cause}", err=True)


def _would(
    head: LifeLineAnswer, resolution: Resolution, ledgers: dict[str, SqlLedger], *, force: bool
) -> str:
    from escrowmq.client.settle_by_hand import what_the_ledger_says

    would = f"would {resolution.value} {head.transaction_id}, which is {head.state}"
    if head.state not in {"prepared", "parked"}:
        return f"{head.transaction_id} is {head.state}: a decision stands, nothing would be done"
    if not head.ledger:
        return f"{would} and has no ledger"
    said, allowed = what_the_ledger_says(ledgers, head)
    says = f"its ledger says {said.reason or said.outcome.value}"
    if resolution in allowed:
        return f"{would}; {says}"
    if force:
        return f"{would}; {says}, and that it was forced goes on record"
    return f"would refuse to {resolution.value} {head.transaction_id}: {says}; --force overrides it"


def _named(transaction: str) -> dict[str, Any]:
    if transaction.isdecimal():
        return {"half_offset": int(transaction)}
    return {"transaction_id": transaction}


def _any(_row: TransactionRow) -> bool:
    return True


def _listed(
    calls: OwnCalls,
    states: str,
    group: str = "",
    older_than: int = 0,
    is_wanted: Callable[[TransactionRow], bool] = _any,
) -> Iterator[TransactionRow]:
    """Transactions in the order of their age, a page at a time: nobody holds a million of them."""
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
    """How many of its group have been due for longer, as far as one page tells."""
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import ListTransactionsHeader

    if head.state != "prepared" or head.next_check_at_ms is None or head.next_check_at_ms > now_ms:
        return 0
    asked = ListTransactionsHeader(states="prepared", producer_group=head.producer_group)
    listed = calls.call(OwnCode.LIST_TRANSACTIONS, asked)
    mine = (head.next_check_at_ms - listed.header.now_ms, head.half_offset)
    return sum(1 for row in listed.rows if (row.wait_ms, row.half_offset) < mine and not row.ledger)


def _raw(row: TransactionRow) -> tuple[Any, ...]:
    is_checked = row.state == 0 and row.wait_ms < NEVER_MS
    line = list(_line(row))
    line[2], line[5] = row.age_ms, row.wait_ms if is_checked else None
    return tuple(line)


def _line(row: TransactionRow) -> tuple[Any, ...]:
    next_check = None
    if row.state == 0 and row.wait_ms < NEVER_MS:
        next_check = f"in {duration(row.wait_ms)}" if row.wait_ms > 0 else "due"
    return (
        row.half_offset,
        STATES[row.state],
        duration(row.age_ms),
        row.producer_group,
        row.checks_sent,
        next_check,
        row.producers_online,
        row.ledger,
        row.transaction_id,
    )


def _head(calls: OwnCalls, transaction: str) -> LifeLineAnswer:
    """How it stands with a transaction, without all that happened to it."""
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import TransactionHeader

    asked = TransactionHeader(**_named(transaction), limit=1, leaves_marks=True)
    told: LifeLineAnswer = calls.call(OwnCode.LIFE_LINE, asked).header
    return told


def _life_line(calls: OwnCalls, transaction: str) -> tuple[LifeLineAnswer, list[EventRow]]:
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import TransactionHeader

    pages = list(calls.pages(OwnCode.LIFE_LINE, TransactionHeader(**_named(transaction))))
    return pages[-1].header, [event for page in pages for event in page.rows]
