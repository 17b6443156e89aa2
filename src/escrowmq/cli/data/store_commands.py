"""``escrowmq store``: check a data directory, repair it, and change its state store.

Modules that need numpy are imported when a command runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from escrowmq.cli.config import load
from escrowmq.cli.options import DryRunOption, FileOption, Output, OutputOption, YesOption
from escrowmq.cli.output import as_facts, escaped_lines, print_item, show_rows
from escrowmq.cli.shapes.tool_shapes import RepairShape
from escrowmq.model.errors import StoreUnusable
from escrowmq.store.config import StoreConfig
from escrowmq.transaction.policy import CheckPolicy

if TYPE_CHECKING:
    from escrowmq.cli.shapes.broker_shapes import Shape
    from escrowmq.store.repair.report import StoreReport

app = typer.Typer()

EXIT_DAMAGED = 1

DataArgument = Annotated[
    Path, typer.Argument(metavar="DATA_DIR", help="The broker's data directory.")
]


@app.command()
def check(data: DataArgument, output: OutputOption = Output.TABLE) -> None:
    """Print what is in a store and whether it is damaged; change nothing.

    Exit code 0: no damage. 1: damage found. 5: the store could not be read.
    """
    from escrowmq.cli.data import store_text
    from escrowmq.store.disk.disk import OsDisk
    from escrowmq.store.disk.lock import holder_of
    from escrowmq.store.repair import inspect

    holder = holder_of(data)
    with readable(data):
        report = inspect.check(OsDisk(store_in(data), read_only=True))

    def table() -> str:
        served = (
            f"Process {holder.pid or 'unknown'} serves this directory: "
            "bytes that it is writing now may look torn.\n\n"
            if holder
            else ""
        )
        return served + store_text.as_table(report)

    if output is Output.CSV:
        show_rows(("code", "path", "at", "what"), store_text.rows(report), output)
    else:
        print_item(_checked(report, is_served=holder is not None), output, table)
    if report.is_damaged:
        raise typer.Exit(EXIT_DAMAGED)


def _checked(report: StoreReport, *, is_served: bool) -> Shape:
    from escrowmq.cli.shapes.store_shape import StoreCheckShape

    facts = msgspec.structs.asdict(report)
    return StoreCheckShape(**facts, is_damaged=report.is_damaged, is_served=is_served)


@app.command()
def repair(
    data: DataArgument,
    *,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TABLE,
    file: FileOption = None,
) -> None:
    """Remove the damage from a store; damaged bytes are copied aside, never deleted.

    Exit code 0: no damage is left. 1: damage is left, or a dry run found work to do. 5: the repair
    was not possible.
    """
    from escrowmq.cli.data import store_repair
    from escrowmq.store.disk.lock import DirectoryLock

    store = store_in(data)
    if not store.is_dir():
        raise StoreUnusable("store_missing", "there is no store in this directory", path=str(data))
    config = load(file=file, environ=os.environ)
    plan: list[str] = []
    done: list[str] = []

    def say(lines: Iterable[str], kept: list[str]) -> None:
        for line in lines:
            kept.append(line)
            if output is Output.TABLE:
                typer.echo(escaped_lines(line))

    with readable(data), DirectoryLock(data):
        work = store_repair.RepairRun(data, store)
        say(work.plan(), plan)
        if work.is_needed and not dry_run:
            if not yes:
                if output is not Output.TABLE:
                    # The operator must see the plan before the question.
                    typer.echo(escaped_lines("\n".join(plan)), err=True)
                typer.confirm("\nDo this?", abort=True, err=True)
            say([""], [])
            say(work.do(config.section(StoreConfig), config.section(CheckPolicy)), done)
    if output is not Output.TABLE:
        repaired = RepairShape(
            is_needed=work.is_needed,
            is_damaged=work.is_left,
            plan=[line for line in plan if line],
            done=[line for line in done if line],
            is_dry_run=dry_run,
        )
        print_item(repaired, output, str)
    if work.is_left or (dry_run and work.is_needed):
        raise typer.Exit(EXIT_DAMAGED)


@app.command()
def migrate(
    data: DataArgument,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="table|mapped|sql", help="The state store that the broker shall use."
        ),
    ],
    output: OutputOption = Output.TABLE,
    file: FileOption = None,
) -> None:
    """Move a stopped broker's transactions to another state store, and compare every record.

    Set transaction.state_store to the same name before the broker starts again.

    Exit code 2: there is no such state store. 5: it could not be filled, or its records differ from
    the log.
    """
    from escrowmq.cli.data.store_migration import StateMigration
    from escrowmq.store.disk.lock import DirectoryLock

    store = store_in(data)
    if not store.is_dir():
        raise StoreUnusable("store_missing", "there is no store in this directory", path=str(data))
    config = load(file=file, environ=os.environ, flags=[f"transaction.state_store={to}"])
    with readable(data), DirectoryLock(data):
        work = StateMigration(store, config.section(StoreConfig), config.section(CheckPolicy))
        done = work.run()
    print_item(done, output, lambda: as_facts(work.facts(done)))


def store_in(data: Path) -> Path:
    """Return the store's path in a data directory."""
    store = data / "store"
    if not store.is_dir() and (data / "commitlog").is_dir():
        raise StoreUnusable(
            "store_missing", "this is the store itself; give the directory above it", path=str(data)
        )
    return store


@contextmanager
def readable(data: Path) -> Iterator[None]:
    """Turn an ``OSError`` into ``StoreUnusable``, with the path and the reason."""
    try:
        yield
    except OSError as error:
        raise StoreUnusable(
            "data_directory_unreadable",
            "let this user read it, or check the disk",
            path=str(error.filename or data),
            reason=error.strerror,
        ) from error
