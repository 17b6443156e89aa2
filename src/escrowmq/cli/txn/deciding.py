"""``escrowmq txn commit`` and ``rollback``: decide one transaction by hand, through its ledger."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.cli import options
from escrowmq.cli.asking import asking, whoami
from escrowmq.cli.output import note, print_item
from escrowmq.cli.preview import escaped
from escrowmq.cli.txn.asking import head_of
from escrowmq.cli.txn.shapes import DecidedShape

if TYPE_CHECKING:
    from escrowmq.client.ledger.table import SqlLedger
    from escrowmq.look_up.ledger_config import LedgerConfig
    from escrowmq.model.resolution import Resolution
    from escrowmq.protocol.native.headers import LifeLineAnswer


LIMIT_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ByHandOptions:
    """Options of ``txn commit`` and ``txn rollback``."""

    reason: Annotated[str, typer.Option(help="The reason; the broker keeps it in its log.")]
    transaction: Annotated[
        str | None,
        typer.Argument(metavar="[TRANSACTION]", help="Its id, or the number of a half message."),
    ] = None
    broker: options.BrokerOption = options.DEFAULT_BROKER
    filter_: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="NAME=VALUE",
            help="Settle each undecided transaction with this group, topic, key, state, id, "
            "older-than or younger-than; may be repeated, and all must hold.",
        ),
    ] = None
    limit: Annotated[
        int, typer.Option(min=1, max=LIMIT_MAX, help="Most transactions that --filter takes.")
    ] = 1_000
    yes: options.YesOption = False
    force: Annotated[
        bool,
        typer.Option("--force", help="Decide against its ledger; the log records the force, too."),
    ] = False
    output: options.OutputOption = options.Output.TABLE
    dry_run: options.DryRunOption = False
    file: options.FileOption = None
    set_: options.SetOption = None

    @property
    def ledgers(self) -> Mapping[str, LedgerConfig]:
        """The ledgers in the config, by name."""
        from escrowmq.cli.config import load

        return load(file=self.file, environ=os.environ, flags=self.set_ or ()).ledgers


def decide_one(transaction: str, resolution: Resolution, given: ByHandOptions) -> None:
    """Decide one transaction, or predict the result in a dry run, and print it."""
    from escrowmq.cli.lake.ledgers_given import open_ledgers, refuse_missing_ledger, usable
    from escrowmq.client.producer.decide_by_hand import decide_by_hand

    configured = given.ledgers
    with asking(given.broker) as calls:
        head = head_of(calls, transaction)
        ledgers = open_ledgers(configured) if head.ledger else []
        if not given.force:
            refuse_missing_ledger(head, ledgers)
        if given.dry_run:
            is_allowed, words = _outlook(head, resolution, usable(ledgers), force=given.force)
            shown = DecidedShape(
                id=head.transaction_id,
                resolution=resolution.value,
                state=head.state,
                is_allowed=is_allowed,
                words=words,
                is_dry_run=True,
            )
        else:
            told = decide_by_hand(
                calls,
                usable(ledgers),
                half_offset=head.half_offset,
                resolution=resolution,
                reason=given.reason,
                by=whoami(),
                force=given.force,
            )
            before = "had been " if told.is_repeated else ""
            shown = DecidedShape.of(
                told,
                id=head.transaction_id,
                resolution=resolution.value,
                state=told.decided,
                is_allowed=True,
                words=f"{transaction} {before}{told.decided} by {told.decided_by}",
                is_dry_run=False,
            )
    print_item(shown, given.output, lambda: escaped(shown.words))
    for one in ledgers:
        if one.fault:
            note(f"ledger {one.name} could not be asked: {one.fault}: {one.cause}", given.output)


def _outlook(
    head: LifeLineAnswer, resolution: Resolution, ledgers: dict[str, SqlLedger], *, force: bool
) -> tuple[bool, str]:
    """Return, for a dry run, whether the decision would be made, and a text about it."""
    from escrowmq.client.producer.decide_by_hand import what_the_ledger_says

    name, word = head.transaction_id, resolution.value
    would = f"would {word} {name}, which is {head.state}"
    if head.state not in {"prepared", "parked"}:
        return False, f"{name} is {head.state}: a decision is final, so nothing would be done"
    if not head.ledger:
        return True, f"{would} and has no ledger"
    said, allowed = what_the_ledger_says(ledgers, head)
    says = f"its ledger says {said.reason or said.outcome.value}"
    if resolution in allowed:
        return True, f"{would}; {says}"
    if force:
        return True, f"{would}; {says}; the log records that it was forced"
    return False, f"would refuse to {word} {name}: {says}; --force overrides it"
