"""``escrowmq demo``: a process dies in the middle of its work, and nothing is lost.

A child (``demo_writer``) writes to a real store and kills itself; then the store is opened again
and compared (``demo_judge``) with what the child had acknowledged.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from escrowmq.model.errors import RequestRefused

EXIT_BROKEN = 1


def demo(
    orders: Annotated[
        int, typer.Option(min=100, max=100_000, help="How many orders are paid.")
    ] = 2_000,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the data in this new directory, to look at it."),
    ] = None,
) -> None:
    """Write transactions, die in the middle of it, recover, and compare.

    Exit code 1 if anything is lost, doubled or visible too early.
    """
    if data is not None:
        if data.exists():
            raise RequestRefused("demo_directory_exists", "give a new directory", path=str(data))
        _show(data, orders)
        return
    with tempfile.TemporaryDirectory(prefix="escrowmq-demo-") as folder:
        _show(Path(folder), orders)


def _show(data: Path, orders: int) -> None:
    from escrowmq.cli import demo_judge, demo_text

    tell = demo_text.Teller(orders)
    acknowledged = demo_judge.write_and_die(data, orders)
    tell.what_was_written(acknowledged)
    with demo_judge.reopened(data) as (store, found, seconds):
        tell.what_was_recovered(found, seconds)
        compared = demo_judge.compare(store, acknowledged)
        tell.what_was_found(acknowledged, compared)
        tell.what_is_answered(demo_judge.ask_again(store, acknowledged))
    tell.verdict(compared)
    if compared.broken:
        raise typer.Exit(EXIT_BROKEN)
