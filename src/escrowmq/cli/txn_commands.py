"""``escrowmq txn``: every undecided transaction, why it waits, and settling one by hand."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
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
from escrowmq.cli.config_commands import FileOption, SetOption
from escrowmq.cli.output import Output, OutputOption, show_rows
from escrowmq.model.errors import EscrowError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from escrowmq.client.ledger_table import SqlLedger
    from escrowmq.client.own_calls import OwnCalls
    from escrowmq.protocol.own_headers import LifeLineAnswer, StatusAnswer
    from escrowmq.protocol.own_rows import EventRow, TransactionRow

app = typer.Typer(help="See undecided transactions, and settle them.", no_args_is_help=True)

COLUMNS = ("half", "state", "age", "group", "checks", "next check", "producers", "ledger", "id")
STATES = ("prepared", "committed", "rolled_back", "parked")
NEVER_MS = 10**15
TransactionArgument = Annotated[
    str, typer.Argument(metavar="TRANSACTION", help="Its id, or the number of a half message.")
]
ReasonOption = Annotated[str, typer.Option(help="Why; it is kept in the log.")]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Whatever its ledger says; that is kept in the log, too.")
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
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many, at most.")] = 100,
) -> None:
    """Print undecided transactions, the oldest first."""
    with asking(broker) as calls:
        rows = _listed(calls, states, group, limit)
    show_rows(COLUMNS, [_line(row) for row in rows], output, "nothing is undecided")


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
            rows = _listed(calls, "prepared,parked", "", limit)
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
def explain(transaction: TransactionArgument, broker: BrokerOption = DEFAULT_BROKER) -> None:
    """Say in words why a transaction is as it is, and what happens next."""
    from escrowmq.protocol.own import OwnCode

    with asking(broker) as calls:
        head, events = _life_line(calls, transaction)
        told = calls.call(OwnCode.STATUS).header
    for line in explained(head, events, told):
        typer.echo(line)


def explained(head: LifeLineAnswer, events: list[EventRow], told: StatusAnswer) -> list[str]:
    """The words."""
    held = next((event for event in events if event.event == "held"), None)
    since = "" if held is None else f" It was stored {duration(told.now_ms - held.at_ms)} ago."
    lines = [f"Transaction {head.transaction_id} is {head.state}.{since}"]
    if head.state in ("committed", "rolled_back"):
        by = next((event for event in events if event.event == head.state), None)
        if by is not None:
            lines.append(f"It was decided by {by.by or 'nobody known'} at {at(by.at_ms)}.")
        return lines
    if head.state == "parked":
        parked = [event for event in events if event.event == "parked"]
        why = parked[-1].detail if parked else "unknown"
        lines.append(f"It was parked ({why}): it is kept, not delivered, and not checked any more.")
        lines.append("Settle it with escrowmq txn commit or rollback, or check it again: resume.")
        return lines
    if head.ledger:
        lines.append(f"Its outcome is in the ledger {head.ledger}, which the pipeline looks up.")
    else:
        lines.append(
            f"{head.producers_online} producers of group {head.producer_group} are online; "
            f"it was asked about {head.checks_sent} of {told.checks_max} times."
        )
    if head.next_check_at_ms is not None:
        wait_ms = head.next_check_at_ms - told.now_ms
        lines.append(
            f"Its next check is due in {duration(wait_ms)}."
            if wait_ms > 0
            else f"Its next check has been due for {duration(-wait_ms)}."
        )
    if told.pipeline_away_since_ms:
        lines.append(
            f"Nothing checks: the pipeline is away since {at(told.pipeline_away_since_ms)}. "
            "Start escrowmq up or escrowmq pipeline."
        )
    elif not head.ledger and not head.producers_online:
        lines.append("Nobody can be asked until a producer of that group connects.")
    return lines


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
    """Make a transaction's messages visible, by hand.

    A transaction with a ledger is decided as that says; the settings must name its database.
    """
    ledgers = _Ledgers(file, set_)
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
    """Drop a transaction's messages, by hand.

    A transaction with a ledger is decided as that says; the settings must name its database.
    """
    ledgers = _Ledgers(file, set_)
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
    from escrowmq.protocol.own_headers import ByHandHeader

    if dry_run:
        typer.echo(f"would have {transaction} checked again")
        return
    with asking(broker) as calls:
        calls.call(OwnCode.RESUME, ByHandHeader(**_named(transaction), by=whoami()))
    typer.echo(f"{transaction} is checked again")


@dataclass(frozen=True)
class _Ledgers:
    """Where the settings are that name databases; they are read if one is needed."""

    file: Path | None
    flags: list[str] | None

    def known(self) -> Mapping[str, SqlLedger]:
        """By their UUIDs those that can be reached."""
        from escrowmq.cli.config import load
        from escrowmq.client.ledger_table import SqlLedger

        found = {}
        for config in load(
            file=self.file, environ=os.environ, flags=self.flags or ()
        ).ledgers.values():
            ledger = SqlLedger(config.url)
            # Of one that is down nothing is known, not even whether it matters.
            with suppress(EscrowError):
                found[ledger.uuid()] = ledger
        return found


def _settle(
    transaction: str,
    resolution: str,
    reason: str,
    broker: str,
    ledgers: _Ledgers,
    *,
    force: bool,
    dry_run: bool,
) -> None:
    from escrowmq.client.outgoing import Resolution
    from escrowmq.client.settle_by_hand import settle_by_hand

    with asking(broker) as calls:
        head, _ = _life_line(calls, transaction)
        if dry_run:
            typer.echo(f"would {resolution} {head.transaction_id}, which is {head.state}")
            return
        told = settle_by_hand(
            calls,
            ledgers.known() if head.ledger else {},
            half_offset=head.half_offset,
            resolution=Resolution(resolution),
            reason=reason,
            by=whoami(),
            force=force,
        )
    before = "had been " if told.is_repeated else ""
    typer.echo(f"{transaction} {before}{told.decided} by {told.decided_by}")


def _named(transaction: str) -> dict[str, Any]:
    if transaction.isdecimal():
        return {"half_offset": int(transaction)}
    return {"transaction_id": transaction}


def _listed(calls: OwnCalls, states: str, group: str, limit: int) -> list[TransactionRow]:
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import ListTransactionsHeader

    asked = ListTransactionsHeader(states=states, with_ids=True)
    found = []
    for row in calls.rows(OwnCode.LIST_TRANSACTIONS, asked):
        if group in ("", row.producer_group):
            found.append(row)
        if len(found) == limit:
            break
    return found


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


def _life_line(calls: OwnCalls, transaction: str) -> tuple[LifeLineAnswer, list[EventRow]]:
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import TransactionHeader

    pages = list(calls.pages(OwnCode.LIFE_LINE, TransactionHeader(**_named(transaction))))
    return pages[-1].header, [event for page in pages for event in page.rows]
