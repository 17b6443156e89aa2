"""``escrowmq txn commit|rollback --filter``: settle many transactions by hand, one after another.

Each transaction goes through its ledger and its fence as if it were settled alone. A refused
transaction is reported, and the others go on.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from escrowmq.cli.asking import asking, duration, whoami
from escrowmq.cli.output import Output, as_table, note, print_item, print_list
from escrowmq.cli.preview import clipped, escaped
from escrowmq.cli.txn_choosing import Choosing
from escrowmq.cli.txn_filter import parse_filters
from escrowmq.cli.txn_messages import NAME_WIDTH
from escrowmq.cli.txn_rows import STATES
from escrowmq.cli.txn_shapes import SettledManyShape, SettledRowShape
from escrowmq.model.errors import EscrowError, OutcomeUnknown, RequestRefused, Unavailable
from escrowmq.protocol.properties import split_keys

if TYPE_CHECKING:
    from escrowmq.cli.txn_choosing import Chosen
    from escrowmq.cli.txn_filter import TransactionFilter
    from escrowmq.client.ledger_table import SqlLedger
    from escrowmq.client.outgoing import Resolution
    from escrowmq.client.own_calls import OwnCalls
    from escrowmq.pipeline.ledger_config import LedgerConfig
    from escrowmq.protocol.own_headers import StatusAnswer

COLUMNS = ("half", "id", "group", "state", "age", "topic", "keys", "outcome", "detail")
LIMIT = 1_000
LIMIT_MAX = 100_000
PROGRESS_S = 2.0
EXIT_SOME_FAILED = 1
EXIT_AWAY = 3
EXIT_UNKNOWN = 4
#: Outcomes of a transaction that was not decided, or may not have been.
REFUSED, UNKNOWN, NOT_TRIED = "refused", "unknown", "not_tried"


OneTransactionArgument = Annotated[
    str | None,
    typer.Argument(metavar="[TRANSACTION]", help="Its id, or the number of a half message."),
]
FilterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="NAME=VALUE",
        help="Every undecided one with this group, topic, key, state, id, older-than, "
        "younger-than; may be repeated, and all must hold.",
    ),
]
LimitOption = Annotated[
    int, typer.Option(min=1, max=LIMIT_MAX, help="With --filter: how many, at most.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An operator's order to settle transactions."""

    resolution: Resolution
    wanted: TransactionFilter
    reason: str
    limit: int
    is_forced: bool
    is_dry_run: bool
    is_confirmed: bool
    output: Output


@dataclass(slots=True)
class Progress:
    """Progress lines on standard error."""

    total: int
    output: Output
    done: int = 0
    failed: int = 0
    _told_at: float = field(default_factory=time.monotonic)

    def step(self, *, is_failed: bool) -> None:
        """Count one transaction, and print the progress every ``PROGRESS_S`` seconds."""
        self.done += 1
        self.failed += is_failed
        now = time.monotonic()
        if now - self._told_at >= PROGRESS_S:
            self._told_at = now
            note(f"{self.done} of {self.total} done, {self.failed} failed", self.output)


def is_one(transaction: str | None, filters: list[str] | None) -> bool:
    """Return whether one transaction is named; refuse both, or neither, of an id and a filter."""
    if (transaction is None) == (not filters):
        raise RequestRefused(
            "bad_option", "name one transaction, or some with --filter", option="TRANSACTION"
        )
    return transaction is not None


def order(
    resolution: str,
    filters: list[str] | None,
    reason: str,
    limit: int,
    output: Output,
    *,
    force: bool,
    dry_run: bool,
    yes: bool,
) -> Order:
    """Make an order from the options of a command."""
    from escrowmq.client.outgoing import Resolution

    return Order(
        resolution=Resolution(resolution),
        wanted=parse_filters(filters or ()),
        reason=reason,
        limit=limit,
        is_forced=force,
        is_dry_run=dry_run,
        is_confirmed=yes,
        output=output,
    )


def settle_filtered(broker: str, configured: Mapping[str, LedgerConfig], order: Order) -> None:
    """Settle the transactions that the filter takes; exit with a code other than 0 if some fail."""
    from escrowmq.cli.ledgers_given import open_ledgers, usable

    given = open_ledgers(configured)
    for one in given:
        if one.fault:
            note(f"ledger {one.name} cannot be asked: {one.fault}: {one.cause}", order.output)
    with asking(broker) as calls:
        code = settle_many(calls, usable(given), order)
    if code:
        raise typer.Exit(code)


def settle_many(calls: OwnCalls, ledgers: Mapping[str, SqlLedger], order: Order) -> int:
    """List, confirm, settle and report; return the exit code."""
    from escrowmq.protocol.own import OwnCode

    # Read the status before the list: each listed transaction was undecided in this history.
    status = calls.call(OwnCode.STATUS).header
    choosing = Choosing(calls, order.wanted, NOT_TRIED)
    found = list(islice(choosing.all(), order.limit + 1))
    chosen, is_cut = found[: order.limit], len(found) > order.limit
    if is_cut:
        note(f"more than {order.limit} match; --limit says how many are taken", order.output)
    if choosing.partly_read:
        left_out = f"left out {choosing.partly_read} transactions: not all of their messages"
        note(f"{left_out} could be read, so settle them by their ids", order.output)
    foresee(ledgers, chosen, status, order)
    if order.is_dry_run or not chosen:
        _print(chosen, order, is_cut=is_cut)
        if order.is_dry_run:
            _tell_plan(chosen, order)
        return 0
    if not order.is_confirmed:
        _confirm(chosen, order)
    for one in chosen:
        one.outcome, one.detail = NOT_TRIED, ""
    try:
        return _settle_all(calls, ledgers, chosen, order)
    finally:
        # Report after Ctrl-C, too: the operator must know what was done.
        _print(chosen, order, is_cut=is_cut)
        _tell_counts(chosen, order.output)


def foresee(
    ledgers: Mapping[str, SqlLedger],
    chosen: Sequence[Chosen],
    status: StatusAnswer,
    order: Order,
) -> None:
    """Predict the outcome of each transaction and note it there."""
    from escrowmq.client.settle_by_hand import foresee_many, is_agreed

    rows = [one.row for one in chosen]
    says = foresee_many(ledgers, rows, order.resolution, status, force=order.is_forced)
    for one in chosen:
        said, ledger = says[one.row.half_offset], one.row.ledger
        told = said.reason or said.outcome.value
        one.detail = f"its ledger says {told}" if ledger else "it has no ledger"
        if is_agreed(said, order.resolution, ledger):
            one.outcome = f"would_{order.resolution.value}"
        elif order.is_forced:
            one.outcome = f"would_force_{order.resolution.value}"
        else:
            one.outcome = "would_refuse"


def _tell_plan(chosen: Sequence[Chosen], order: Order) -> None:
    refused = sum(one.outcome == "would_refuse" for one in chosen)
    forced = sum(one.outcome.startswith("would_force") for one in chosen)
    plan = f"would {order.resolution.value} {len(chosen) - refused} of {len(chosen)} transactions"
    plan += f", {forced} of them by force, on record" if forced else ""
    plan += f"; would refuse {refused}: --force overrides their ledgers" if refused else ""
    if order.output is Output.TABLE:
        typer.echo(plan)
    else:
        note(plan, order.output)


def _confirm(chosen: Sequence[Chosen], order: Order) -> None:
    shown = chosen[:10]
    typer.echo(as_table(COLUMNS, [_line(_shape(one)) for one in shown]), err=True)
    if len(chosen) > len(shown):
        typer.echo(f"and {len(chosen) - len(shown)} more; --dry-run lists them", err=True)
    forced = " BY FORCE" if order.is_forced else ""
    question = f"{order.resolution.value} {len(chosen)} transactions{forced}? There is no way back"
    typer.confirm(question, abort=True, err=True)


def _settle_all(
    calls: OwnCalls, ledgers: Mapping[str, SqlLedger], chosen: Sequence[Chosen], order: Order
) -> int:
    from escrowmq.client.settle_by_hand import settle_by_hand

    progress = Progress(len(chosen), order.output)
    by = whoami()
    for one in chosen:
        # After Ctrl-C this stays: the broker may have decided the transaction.
        one.outcome = UNKNOWN
        try:
            told = settle_by_hand(
                calls,
                ledgers,
                half_offset=one.row.half_offset,
                transaction_id=one.row.transaction_id or "",
                resolution=order.resolution,
                reason=order.reason,
                by=by,
                force=order.is_forced,
            )
        except RequestRefused as error:
            one.outcome, one.detail = REFUSED, _words(error)
        except Unavailable as error:
            # The broker is away or overloaded, so the other transactions would fail, too.
            one.outcome, one.detail = NOT_TRIED, _words(error)
            return EXIT_AWAY
        except OutcomeUnknown as error:
            one.detail = _words(error)
        else:
            one.outcome = told.decided
            one.detail = f"had been decided by {told.decided_by}" if told.is_repeated else ""
        progress.step(is_failed=one.outcome in {REFUSED, UNKNOWN})
    if any(one.outcome == UNKNOWN for one in chosen):
        return EXIT_UNKNOWN
    return EXIT_SOME_FAILED if progress.failed else 0


def _words(error: EscrowError) -> str:
    return escaped(" ".join(str(error).split()))


def _print(chosen: Sequence[Chosen], order: Order, *, is_cut: bool) -> None:
    result = SettledManyShape(
        resolution=order.resolution.value,
        counts=_counts(chosen),
        transactions=[_shape(one) for one in chosen],
        is_cut=is_cut,
        is_dry_run=order.is_dry_run,
    )
    if order.output is Output.CSV:
        print_list(SettledRowShape, result.transactions, order.output, str)
    else:
        table = partial(as_table, COLUMNS, [*map(_line, result.transactions)])
        print_item(result, order.output, lambda: table("no transaction matches"))
    sys.stdout.flush()


def _shape(one: Chosen) -> SettledRowShape:
    return SettledRowShape(
        half=one.row.half_offset,
        id=one.row.transaction_id or "",
        group=one.row.producer_group,
        state=STATES[one.row.state],
        age_ms=one.now_ms - one.row.stored_at_ms,
        topic=one.message.topic if one.message else None,
        keys=list(split_keys(one.message.keys)) if one.message else None,
        outcome=one.outcome,
        detail=one.detail,
    )


def _line(one: SettledRowShape) -> tuple[Any, ...]:
    keys = clipped(" ".join(one.keys or ()), NAME_WIDTH)
    head = (one.half, one.id, one.group, one.state, duration(one.age_ms))
    return (*head, one.topic, keys, one.outcome, one.detail)


def _counts(chosen: Sequence[Chosen]) -> dict[str, int]:
    return dict(sorted(Counter(one.outcome for one in chosen).items()))


def _tell_counts(chosen: Sequence[Chosen], output: Output) -> None:
    told = ", ".join(f"{count} {outcome}" for outcome, count in _counts(chosen).items())
    note(f"{len(chosen)} transactions: {told}", output)
