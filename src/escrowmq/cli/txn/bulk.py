"""``escrowmq txn commit|rollback --filter``: decide many transactions by hand, one after another.

Each transaction goes through its ledger and its fence as if it were decided alone. A refused
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
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from escrowmq.cli.asking import asking, duration, whoami
from escrowmq.cli.options import Output
from escrowmq.cli.output import as_table, note, print_item, print_list
from escrowmq.cli.preview import clipped, escaped
from escrowmq.cli.txn.choosing import NOT_TRIED, REFUSED, UNKNOWN, Choosing
from escrowmq.cli.txn.deciding import ByHandOptions
from escrowmq.cli.txn.filter import parse_filters
from escrowmq.cli.txn.messages import NAME_WIDTH
from escrowmq.cli.txn.rows import STATES
from escrowmq.cli.txn.shapes import DecidedManyShape, DecidedRowShape
from escrowmq.model.errors import EscrowError, OutcomeUnknown, RequestRefused, Unavailable
from escrowmq.protocol.message.properties import split_keys
from escrowmq.protocol.native.requests import NativeCode

if TYPE_CHECKING:
    from escrowmq.cli.txn.choosing import Chosen
    from escrowmq.client.ledger.table import SqlLedger
    from escrowmq.client.network.native_calls import NativeCalls
    from escrowmq.model.resolution import Resolution
    from escrowmq.protocol.native.status_answer import StatusAnswer

COLUMNS = ("half", "id", "group", "state", "age", "topic", "keys", "outcome", "detail")
PROGRESS_S = 2.0
EXIT_SOME_FAILED = 1
EXIT_AWAY = 3
EXIT_UNKNOWN = 4


class BulkOrder(NamedTuple):
    """An operator's order to decide transactions."""

    resolution: Resolution
    given: ByHandOptions


@dataclass(slots=True)
class ProgressLines:
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


def decide_filtered(order: BulkOrder) -> None:
    """Decide the transactions that the filter takes; exit with a code other than 0 if some fail."""
    from escrowmq.cli.lake.ledgers_given import open_ledgers, usable

    ledgers = open_ledgers(order.given.ledgers)
    for one in ledgers:
        if one.fault:
            note(f"ledger {one.name} cannot be asked: {one.fault}: {one.cause}", order.given.output)
    with asking(order.given.broker) as calls:
        code = decide_many(calls, usable(ledgers), order)
    if code:
        raise typer.Exit(code)


def decide_many(calls: NativeCalls, ledgers: Mapping[str, SqlLedger], order: BulkOrder) -> int:
    """List, confirm, decide and report; return the exit code."""
    # Read the status before the list: each listed transaction was undecided in this history.
    status = calls.call(NativeCode.STATUS).header
    choosing = Choosing(calls, parse_filters(order.given.filter_ or ()))
    found = list(islice(choosing.all(), order.given.limit + 1))
    chosen, is_cut = found[: order.given.limit], len(found) > order.given.limit
    if is_cut:
        note(
            f"more than {order.given.limit} match; --limit sets how many are taken",
            order.given.output,
        )
    if choosing.partly_read:
        left_out = f"left out {choosing.partly_read} transactions: not all of their messages"
        note(f"{left_out} could be read, so decide them by their ids", order.given.output)
    foresee(ledgers, chosen, status, order)
    if order.given.dry_run or not chosen:
        _print(chosen, order, is_cut=is_cut)
        if order.given.dry_run:
            _tell_plan(chosen, order)
        return 0
    if not order.given.yes:
        _confirm(chosen, order)
    for one in chosen:
        one.outcome, one.detail = NOT_TRIED, ""
    try:
        return _decide_all(calls, ledgers, chosen, order)
    finally:
        # Report after Ctrl-C, too: the operator must know what was done.
        _print(chosen, order, is_cut=is_cut)
        _tell_counts(chosen, order.given.output)


def foresee(
    ledgers: Mapping[str, SqlLedger],
    chosen: Sequence[Chosen],
    status: StatusAnswer,
    order: BulkOrder,
) -> None:
    """Predict the outcome of each chosen transaction, and note it in ``chosen``."""
    from escrowmq.client.producer.decide_by_hand import foresee_many, is_agreed

    rows = [one.row for one in chosen]
    says = foresee_many(ledgers, rows, order.resolution, status, force=order.given.force)
    for one in chosen:
        said, ledger = says[one.row.half_offset], one.row.ledger
        told = said.reason or said.outcome.value
        one.detail = f"its ledger says {told}" if ledger else "it has no ledger"
        if is_agreed(said, order.resolution, ledger):
            one.outcome = f"would_{order.resolution.value}"
        elif order.given.force:
            one.outcome = f"would_force_{order.resolution.value}"
        else:
            one.outcome = "would_refuse"


def _tell_plan(chosen: Sequence[Chosen], order: BulkOrder) -> None:
    refused = sum(one.outcome == "would_refuse" for one in chosen)
    forced = sum(one.outcome.startswith("would_force") for one in chosen)
    plan = f"would {order.resolution.value} {len(chosen) - refused} of {len(chosen)} transactions"
    plan += f", {forced} of them by force, which the log records" if forced else ""
    plan += f"; would refuse {refused}: --force overrides their ledgers" if refused else ""
    if order.given.output is Output.TABLE:
        typer.echo(plan)
    else:
        note(plan, order.given.output)


def _confirm(chosen: Sequence[Chosen], order: BulkOrder) -> None:
    shown = chosen[:10]
    typer.echo(as_table(COLUMNS, [_line(_shape(one)) for one in shown]), err=True)
    if len(chosen) > len(shown):
        typer.echo(f"and {len(chosen) - len(shown)} more; --dry-run lists them", err=True)
    forced = " BY FORCE" if order.given.force else ""
    question = f"{order.resolution.value} {len(chosen)} transactions{forced}? This cannot be undone"
    typer.confirm(question, abort=True, err=True)


def _decide_all(
    calls: NativeCalls, ledgers: Mapping[str, SqlLedger], chosen: Sequence[Chosen], order: BulkOrder
) -> int:
    from escrowmq.client.producer.decide_by_hand import decide_by_hand

    progress = ProgressLines(len(chosen), order.given.output)
    by = whoami()
    for one in chosen:
        # After Ctrl-C this outcome stays: the broker may have decided the transaction.
        one.outcome = UNKNOWN
        try:
            told = decide_by_hand(
                calls,
                ledgers,
                half_offset=one.row.half_offset,
                transaction_id=one.row.transaction_id or "",
                resolution=order.resolution,
                reason=order.given.reason,
                by=by,
                force=order.given.force,
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


def _print(chosen: Sequence[Chosen], order: BulkOrder, *, is_cut: bool) -> None:
    result = DecidedManyShape(
        resolution=order.resolution.value,
        counts=_counts(chosen),
        transactions=[_shape(one) for one in chosen],
        is_cut=is_cut,
        is_dry_run=order.given.dry_run,
    )
    if order.given.output is Output.CSV:
        print_list(DecidedRowShape, result.transactions, order.given.output, str)
    else:
        table = partial(as_table, COLUMNS, [*map(_line, result.transactions)])
        print_item(result, order.given.output, lambda: table("no transaction matches"))
    sys.stdout.flush()


def _shape(one: Chosen) -> DecidedRowShape:
    return DecidedRowShape(
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


def _line(one: DecidedRowShape) -> tuple[Any, ...]:
    keys = clipped(" ".join(one.keys or ()), NAME_WIDTH)
    head = (one.half, one.id, one.group, one.state, duration(one.age_ms))
    return (*head, one.topic, keys, one.outcome, one.detail)


def _counts(chosen: Sequence[Chosen]) -> dict[str, int]:
    return dict(sorted(Counter(one.outcome for one in chosen).items()))


def _tell_counts(chosen: Sequence[Chosen], output: Output) -> None:
    told = ", ".join(f"{count} {outcome}" for outcome, count in _counts(chosen).items())
    note(f"{len(chosen)} transactions: {told}", output)
