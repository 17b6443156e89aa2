"""How commands print: for people, or for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

WIDTH_MAX = 60


class Output(StrEnum):
    """For people, or for programs."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="For people, or for programs.")
]


def show_rows(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], output: Output, none: str = "none"
) -> None:
    """Print rows; a table of none says so."""
    if output is Output.JSON:
        typer.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2))
    elif output is Output.CSV:
        typer.echo(as_csv([columns, *rows]), nl=False)
    else:
        typer.echo(as_table(columns, rows) if rows else none)


def show_facts(facts: dict[str, Any], output: Output) -> None:
    """Print the facts about one thing."""
    if output is Output.JSON:
        typer.echo(json.dumps(facts, indent=2))
    elif output is Output.CSV:
        typer.echo(as_csv([["name", "value"], *facts.items()]), nl=False)
    else:
        width = max(map(len, facts))
        for name, value in facts.items():
            typer.echo(f"{name:{width}}  {_text(value)}")


def as_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Aligned columns, the same on a terminal and in a pipe, so that grep and awk can read them."""
    texts = [[column.upper() for column in columns], *([_text(one) for one in row] for row in rows)]
    # A value that is longer sticks out; it does not push everything else out of sight.
    widths = [
        max(len(row[at]) for row in texts if len(row[at]) <= WIDTH_MAX)
        for at in range(len(columns))
    ]
    return "\n".join(
        "  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in texts
    )


def _text(value: object) -> str:
    if value is None or value == "":
        return "-"
    return str(value).lower() if isinstance(value, bool) else printable(str(value))


def printable(text: str) -> str:
    """Text on one line without control characters: a client's words must not steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def as_csv(rows: Sequence[Sequence[Any]]) -> str:
    """Lines of comma-separated values."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    return written.getvalue()
