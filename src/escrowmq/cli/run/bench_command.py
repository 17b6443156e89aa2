"""``escrowmq bench``: run a bench program of the source tree."""

from __future__ import annotations

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from escrowmq.cli.options import Output, OutputOption
from escrowmq.cli.output import print_list
from escrowmq.cli.shapes.tool_shapes import BenchShape
from escrowmq.model.errors import RequestRefused

PACKAGE = "bench"
WHERE = "the programs are in the bench folder of the source tree; run this in a clone"


def bench(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="Name of a program; without it, all are listed.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run a benchmark program, and print its figures.

    The option -o formats the list of programs. Figures are always JSON, one object per line.

    Arguments after the name go to the program: escrowmq bench store -- --help.
    """
    # The root of a clone is not on the import path of an installed command.
    if find_spec(PACKAGE) is None and Path(PACKAGE, "__init__.py").is_file():
        sys.path.insert(0, str(Path.cwd()))
    programs = names()
    if not programs:
        raise RequestRefused("bench_missing", WHERE)
    if name is None:
        found = [BenchShape(name=program) for program in programs]
        print_list(BenchShape, found, output, lambda: "\n".join(programs))
        return
    if name not in programs:
        raise RequestRefused(
            "bench_unknown", f"the programs are {', '.join(programs)}", name=name[:64]
        )
    sys.argv = [f"escrowmq bench {name}", *context.args]
    runpy.run_module(f"{PACKAGE}.{name}", run_name="__main__")


def names() -> list[str]:
    """Return the name of every bench program."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return []
    root = Path(next(iter(spec.submodule_search_locations)))
    found = [path for path in root.rglob("*.py") if 'if __name__ == "__main__"' in path.read_text()]
    return sorted(".".join(path.relative_to(root).with_suffix("").parts) for path in found)
