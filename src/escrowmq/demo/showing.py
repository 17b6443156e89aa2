"""Shows the progress of the demo: bars on a terminal, a few lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from escrowmq.demo.figures import DemoRun

if TYPE_CHECKING:
    from rich.console import Console

NAMES = {"logistics": "logistics", "points": "credit points", "cart": "cart"}
LINES = 4
"""The number of progress lines of a run without a terminal."""


@contextmanager
def showing(console: Console, kills: int) -> Iterator[Lines | Bars]:
    """Yield bars for a terminal, and lines for any other output."""
    if not console.is_terminal:
        yield Lines(console, kills)
        return
    columns = (TextColumn("  {task.description:32}"), BarColumn(40), MofNCompleteColumn())
    with Progress(*columns, console=console) as progress:
        yield Bars(progress, kills)


class Lines:
    """Prints one line for each step, and for each quarter of a run."""

    def __init__(self, console: Console, kills: int) -> None:
        self._console = console
        self._kills = kills
        self._told: dict[str, int] = {}

    def say(self, text: str) -> None:
        """Show that a step begins."""
        self._console.print(f"> {text}")

    def tell(self, run: DemoRun, paid: int, acted: Mapping[str, int]) -> None:
        """Print a line once for each quarter of the orders."""
        part = paid * LINES // run.orders
        if part > self._told.get(run.name, 0):
            self._told[run.name] = part
            behind = paid - min(acted.values())
            self._console.print(
                f"  {paid:,} orders paid, {len(run.kills)} of {self._kills} kills,"
                f" downstream {max(behind, 0):,} behind"
            )


class Bars:
    """Draws bars for orders, kills and each downstream service, a new set for each run."""

    def __init__(self, progress: Progress, kills: int) -> None:
        self._progress = progress
        self._kills = kills
        self._run = ""
        self._tasks: dict[str, TaskID] = {}

    def say(self, text: str) -> None:
        """Show that a step begins."""
        self._progress.console.print(f"[bold]>[/] {text}")

    def tell(self, run: DemoRun, paid: int, acted: Mapping[str, int]) -> None:
        """Update the bars."""
        if run.name != self._run:
            self._run = run.name
            totals = {"orders paid": run.orders, "kills": self._kills}
            totals |= dict.fromkeys(NAMES.values(), run.orders)
            self._tasks = {
                name: self._progress.add_task(f"{run.name}: {name}", total=total)
                for name, total in totals.items()
            }
        told = {"orders paid": paid, "kills": len(run.kills)}
        told |= {NAMES[name]: count for name, count in acted.items()}
        for name, count in told.items():
            self._progress.update(self._tasks[name], completed=count)
