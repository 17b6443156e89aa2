"""``escrowmq clock``: show a broker's clocks, and let an operator confirm the wall clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.cli.admin.status import deletion_of, gap_of
from escrowmq.cli.asking import asking, at, duration, whoami
from escrowmq.cli.options import DEFAULT_BROKER, BrokerOption, DryRunOption, Output, OutputOption
from escrowmq.cli.output import as_facts, print_item
from escrowmq.cli.shapes.broker_shapes import ClockConfirmedShape, ClockShape
from escrowmq.protocol.native.operator_headers import ConfirmClockHeader
from escrowmq.protocol.native.requests import NativeCode

if TYPE_CHECKING:
    from escrowmq.protocol.native.status_answer import StatusAnswer

app = typer.Typer()

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@app.command()
def show(broker: BrokerOption = DEFAULT_BROKER, output: OutputOption = Output.TABLE) -> None:
    """Print store time, the wall clock of the broker's machine, and whether deletion waits."""
    told = _status(broker)
    print_item(ClockShape.of(told), output, lambda: as_facts(facts(told)))


@app.command()
def confirm(
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
) -> None:
    """Confirm that the wall clock of the broker's machine is right; check it first.

    If it is ahead, store time follows at once: delays, retries and back-checks that are due by then
    happen. Deletion waits for one more hour. If it is behind, store time stays and the alert stops.
    """
    told = _status(broker)
    if output is Output.TABLE:
        for name, value in facts(told).items():
            typer.echo(f"{name}: {value}")
    done = None
    if not dry_run:
        if not yes:
            typer.confirm(f"Is it {at(told.wall_ms)} now, in UTC?", abort=True, err=True)
        header = ConfirmClockHeader(gap_ms=told.clock_gap_ms, by=whoami())
        with asking(broker) as calls:
            done = calls.call(NativeCode.CONFIRM_CLOCK, header).header
    confirmed = ClockConfirmedShape(
        wall_ms=told.wall_ms,
        from_ms=done.from_ms if done else told.now_ms,
        to_ms=done and done.to_ms,
        deletion_waits_ms=done and done.deletion_waits_ms,
        is_dry_run=dry_run,
    )
    print_item(confirmed, output, lambda: _confirmed_text(confirmed))


def _confirmed_text(confirmed: ClockConfirmedShape) -> str:
    if confirmed.to_ms is None:
        return "would confirm that wall time"
    if confirmed.to_ms > confirmed.from_ms:
        return (
            f"store time has moved to {at(confirmed.to_ms)}; nothing is deleted by age for "
            f"{duration(confirmed.deletion_waits_ms)}"
        )
    return f"store time stays {duration(confirmed.from_ms - confirmed.to_ms)} ahead"


def _status(broker: str) -> StatusAnswer:
    with asking(broker) as calls:
        told: StatusAnswer = calls.call(NativeCode.STATUS).header
    return told


def facts(told: StatusAnswer) -> dict[str, str | None]:
    """Return the text lines for an operator, by name."""
    return {
        "store time": at(told.now_ms),
        "wall time": at(told.wall_ms),
        "synchronized": "yes, the kernel says" if told.is_clock_synchronized else "unknown",
        "gap": gap_of(told),
        "deletion": deletion_of(told),
    }
