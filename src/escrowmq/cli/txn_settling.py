"""``escrowmq txn commit`` and ``rollback``: settle one transaction by hand, through its ledger."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.cli.asking import asking, whoami
from escrowmq.cli.output import Output, note, print_item
from escrowmq.cli.preview import escaped
from escrowmq.cli.txn_asking import head_of
from escrowmq.cli.txn_shapes import SettledShape

if TYPE_CHECKING:
    from escrowmq.client.ledger_table import SqlLedger
    from escrowmq.client.outgoing import Resolution
    from escrowmq.pipeline.ledger_config import LedgerConfig
    from escrowmq.protocol.own_headers import LifeLineAnswer


def configured_ledgers(file: Path | None, flags: list[str] | None) -> Mapping[str, LedgerConfig]:
    """Return the ledgers in the config, by name."""
    from escrowmq.cli.config import load

    return load(file=file, environ=os.environ, flags=flags or ()).ledgers


def settle_one(
    transaction: str,
    resolution: str,
    *,
    reason: str,
    broker: str,
    configured: Mapping[str, LedgerConfig],
    output: Output,
    force: bool,
    dry_run: bool,
) -> None:
    """Settle one transaction, or predict the result in a dry run, and print it."""
    from escrowmq.cli.ledgers_given import open_ledgers, refuse_missing_ledger, usable
    from escrowmq.client.outgoing import Resolution
    from escrowmq.client.settle_by_hand import settle_by_hand

    with asking(broker) as calls:
        head = head_of(calls, transaction)
        given = open_ledgers(configured) if head.ledger else []
        if not force:
            refuse_missing_ledger(head, given)
        if dry_run:
            settled = _would(head, Resolution(resolution), usable(given), force=force)
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
            settled = SettledShape(
                id=head.transaction_id,
                resolution=resolution,
                state=told.decided,
                is_allowed=True,
                is_repeated=told.is_repeated,
                decided_by=told.decided_by,
                decided_at_ms=told.decided_at_ms,
                words=f"{transaction} {before}{told.decided} by {told.decided_by}",
                is_dry_run=False,
            )
    print_item(settled, output, lambda: escaped(settled.words))
    for one in given:
        if one.fault:
            note(f"ledger {one.name} could not be asked: {one.fault}: {one.cause}", output)


def _would(
    head: LifeLineAnswer, resolution: Resolution, ledgers: dict[str, SqlLedger], *, force: bool
) -> SettledShape:
    """Predict the result for a dry run; decide nothing."""
    is_allowed, words = _outlook(head, resolution, ledgers, force=force)
    return SettledShape(
        id=head.transaction_id,
        resolution=resolution.value,
        state=head.state,
        is_allowed=is_allowed,
        is_repeated=None,
        decided_by=None,
        decided_at_ms=None,
        words=words,
        is_dry_run=True,
    )


def _outlook(
    head: LifeLineAnswer, resolution: Resolution, ledgers: dict[str, SqlLedger], *, force: bool
) -> tuple[bool, str]:
    from escrowmq.client.settle_by_hand import what_the_ledger_says

    name, word = head.transaction_id, resolution.value
    would = f"would {word} {name}, which is {head.state}"
    if head.state not in {"prepared", "parked"}:
        return False, f"{name} is {head.state}: a decision stands, nothing would be done"
    if not head.ledger:
        return True, f"{would} and has no ledger"
    said, allowed = what_the_ledger_says(ledgers, head)
    says = f"its ledger says {said.reason or said.outcome.value}"
    if resolution in allowed:
        return True, f"{would}; {says}"
    if force:
        return True, f"{would}; {says}, and that it was forced goes on record"
    return False, f"would refuse to {word} {name}: {says}; --force overrides it"
