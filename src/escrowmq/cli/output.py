"""How commands print: tables for people, JSON and CSV for programs.

JSON is ASCII: no value can steer a terminal, and no locale changes it.  ``shapes.py`` holds the
objects that are printed.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from escrowmq.cli.preview import escaped

if TYPE_CHECKING:
    import msgspec

    from escrowmq.cli.shapes import Shape

WIDTH_MAX = 60
_KIBI = 1_024


class Output(StrEnum):
    """For people, or for programs."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class LineOutput(StrEnum):
    """How a command prints that goes on until it is stopped: lines for people, or JSON lines."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="For people, or for programs.")
]
LineOutputOption = Annotated[
    LineOutput, typer.Option("--output", "-o", help="For people, or JSON lines.")
]


def print_list(
    kind: type[Shape], items: Iterable[Shape], output: Output, table: Callable[[], str]
) -> None:
    """Print items of one shape; ``table`` makes what people see of them."""
    if output is Output.JSON:
        typer.echo(as_json([_plain(item) for item in items]))
    elif output is Output.CSV:
        typer.echo(as_csv([kind.__struct_fields__, *map(csv_row, items)]), nl=False)
    else:
        typer.echo(escaped_lines(table()))


def print_item(item: msgspec.Struct, output: Output, table: Callable[[], str]) -> None:
    """Print one item; ``table`` makes what people see of it."""
    if output is Output.JSON:
        typer.echo(as_json(_plain(item)))
    elif output is Output.CSV:
        rows = [[name, _cell(value)] for name, value in _plain(item).items()]
        typer.echo(as_csv([["name", "value"], *rows]), nl=False)
    else:
        typer.echo(escaped_lines(table()))


def print_json_line(item: Shape, *, err: bool = False) -> None:
    """Print one item on one line."""
    typer.echo(json.dumps(_plain(item), allow_nan=False), err=err)


def note(text: str, output: Output | LineOutput) -> None:
    """Say on standard error what a person or a program should know about the result."""
    if output == Output.JSON:
        from escrowmq.cli.shapes import NoteShape

        print_json_line(NoteShape(note=text), err=True)
    else:
        typer.echo(escaped(text), err=True)


def as_json(value: object) -> str:
    """Indented, ASCII, and without NaN, which JSON does not have."""
    return json.dumps(value, indent=2, allow_nan=False)


def show_rows(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], output: Output, none: str = "none"
) -> None:
    """Print rows whose columns have the same names for people and for programs."""
    if output is Output.JSON:
        typer.echo(as_json([dict(zip(columns, row, strict=True)) for row in rows]))
    elif output is Output.CSV:
        typer.echo(as_csv([columns, *rows]), nl=False)
    else:
        typer.echo(as_table(columns, rows, none))


def as_facts(facts: Mapping[str, Any]) -> str:
    """A line for each fact about one thing."""
    width = max(map(len, facts))
    return "\n".join(f"{name:{width}}  {cell_text(value)}" for name, value in facts.items())


def as_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], none: str = "none") -> str:
    """Aligned columns, the same on a terminal and in a pipe, so that grep and awk can read them."""
    if not rows:
        return none
    texts = [
        [column.upper() for column in columns],
        *([cell_text(one) for one in row] for row in rows),
    ]
    return "\n".join(aligned(row, column_widths(texts)) for row in texts)


def column_widths(texts: Sequence[Sequence[str]]) -> list[int]:
    """As wide as the widest text; longer texts stick out and do not push the others away."""
    return [
        max(len(text) for text in column if len(text) <= WIDTH_MAX)
        for column in zip(*texts, strict=True)
    ]


def aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """One line of a table."""
    return "  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip()


def cell_text(value: object) -> str:
    """A value in a table; a dash stands for a value that is not there."""
    if value is None or value == "":
        return "-"
    return str(value).lower() if isinstance(value, bool) else escaped(str(value))


def escaped_lines(text: str) -> str:
    """Lines for people.  Names and texts of clients in them cannot control the terminal."""
    return "\n".join(map(escaped, text.split("\n")))


def human_bytes(count: int) -> str:
    """A size for people: bytes below 1 KiB, else with one decimal in the largest unit."""
    if abs(count) < _KIBI:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= _KIBI
        # 1023.95 would be shown as 1024.0.
        if abs(size) < _KIBI - 0.05:
            return f"{size:.1f} {unit}"
    return f"{size / _KIBI:.1f} PiB"


def as_csv(rows: Sequence[Sequence[Any]]) -> str:
    """Lines of comma-separated values."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    return written.getvalue()


def csv_row(item: Shape) -> list[object]:
    """The values of one item, in the order of its keys."""
    return [_cell(value) for value in _plain(item).values()]


def _plain(item: msgspec.Struct) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(item)
    return plain


def _cell(value: object) -> object:
    """A value in CSV: what is a list or an object there is JSON."""
    return json.dumps(value) if isinstance(value, dict | list) else value
