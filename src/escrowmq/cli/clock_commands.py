"""``escrowmq clock``: show a broker's clocks, and let an operator confirm the wall clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
from escrowmq.cli.clock_text import deletion_of, gap_of
from escrowmq.cli.output import Output, OutputOption, as_facts, print_item
from escrowmq.cli.shapes import ClockConfirmedShape, ClockShape

if TYPE_CHECKING:
    from escrowmq.protocol.own_headers import StatusAnswer

app = typer.Typer(help="See a broker's clocks, and confirm the time.", no_args_is_help=True)

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.callback()
def clock() -> None:
    """See a broker's clocks, and confirm the time."""


@app.command()
def show(broker: BrokerOption = DEFAULT_BROKER, output: OutputOption = Output.TABLE) -> None:
    """Print store time, the wall clock of the broker's machine, and whether deletion waits."""
    told = _status(broker)
    print_item(raw(told), output, lambda: as_facts(facts(told)))


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
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_hand_headers import ConfirmClockHeader

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
            done = calls.call(OwnCode.CONFIRM_CLOCK, header).header
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
            f"store time has moved to {at(confirmed.to_ms)}; nothing is deleted for its age for "
            f"{duration(confirmed.deletion_waits_ms)}"
        )
    return f"store time stays {duration(confirmed.from_ms - confirmed.to_ms)} ahead"


def _status(broker: str) -> StatusAnswer:
    from escrowmq.protocol.own import OwnCode

    with asking(broker) as calls:
        told: StatusAnswer = calls.call(OwnCode.STATUS).header
    return told


def raw(told: StatusAnswer) -> ClockShape:
    """Convert a status answer to the JSON shape."""
    return ClockShape(**{name: getattr(told, name) for name in ClockShape.__struct_fields__})


def facts(told: StatusAnswer) -> dict[str, str | None]:
    """Return the text lines for an operator, by name."""
    return {
        "store time": at(told.now_ms),
        "wall time": at(told.wall_ms),
        "synchronized": "yes, the kernel says" if told.is_clock_synchronized else "nobody knows",
        "gap": gap_of(told),
        "deletion": deletion_of(told),
    }
