"""Prints the results of commands: tables for people, JSON and CSV for programs.

JSON is ASCII, so no value can control a terminal and no locale changes it. ``shapes/`` holds the
objects that are printed.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import typer

from escrowmq.cli.options import LineOutput, Output
from escrowmq.cli.preview import escaped

if TYPE_CHECKING:
    import msgspec

    from escrowmq.cli.shapes.broker_shapes import Shape

WIDTH_MAX = 60
#: A key of the shape, or a title and the key or function that fills its cells.
Column = str | tuple[str, str | Callable[[Any], object]]
_KIBI = 1_024


def print_list(
    kind: type[Shape], items: Iterable[Shape], output: Output, table: Callable[[], str]
) -> None:
    """Print items of one shape; ``table`` makes the text for people."""
    if output is Output.JSON:
        typer.echo(as_json([_plain(item) for item in items]))
    elif output is Output.CSV:
        typer.echo(as_csv([kind.__struct_fields__, *map(csv_row, items)]), nl=False)
    else:
        typer.echo(escaped_lines(table()))


def print_table(
    kind: type[Shape],
    items: Sequence[Shape],
    output: Output,
    columns: Sequence[Column],
    none: str = "none",
) -> None:
    """Print items of one shape, as a table with these columns for people."""
    pairs = [(column, column) if isinstance(column, str) else column for column in columns]
    cells = [attrgetter(cell) if isinstance(cell, str) else cell for _, cell in pairs]

    def table() -> str:
        rows = [[cell(item) for cell in cells] for item in items]
        return as_table([title for title, _ in pairs], rows, none)

    print_list(kind, items, output, table)


def print_item(item: msgspec.Struct, output: Output, table: Callable[[], str]) -> None:
    """Print one item; ``table`` makes the text for people."""
    if output is Output.JSON:
        typer.echo(as_json(_plain(item)))
    elif output is Output.CSV:
        rows = [[name, _cell(value)] for name, value in _plain(item).items()]
        typer.echo(as_csv([["name", "value"], *rows]), nl=False)
    else:
        typer.echo(escaped_lines(table()))


def print_json_line(item: Shape, *, err: bool = False) -> None:
    """Print one item as JSON on one line."""
    typer.echo(json.dumps(_plain(item), allow_nan=False), err=err)


def note(text: str, output: Output | LineOutput) -> None:
    """Print a note about the result on standard error."""
    if output == Output.JSON:
        from escrowmq.cli.shapes.broker_shapes import NoteShape

        print_json_line(NoteShape(note=text), err=True)
    else:
        typer.echo(escaped(text), err=True)


def as_json(value: object) -> str:
    """Format a value as indented ASCII JSON; NaN raises, because JSON has none."""
    return json.dumps(value, indent=2, allow_nan=False)


def show_rows(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], output: Output, none: str = "none"
) -> None:
    """Print rows whose column names are the same in every format."""
    if output is Output.JSON:
        typer.echo(as_json([dict(zip(columns, row, strict=True)) for row in rows]))
    elif output is Output.CSV:
        typer.echo(as_csv([columns, *rows]), nl=False)
    else:
        typer.echo(as_table(columns, rows, none))


def as_facts(facts: Mapping[str, Any]) -> str:
    """Format one line for each fact."""
    width = max(map(len, facts))
    return "\n".join(f"{name:{width}}  {cell_text(value)}" for name, value in facts.items())


def as_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], none: str = "none") -> str:
    """Align the columns, on a terminal and in a pipe alike, so that grep and awk can read them."""
    if not rows:
        return none
    texts = [
        [column.upper() for column in columns],
        *([cell_text(one) for one in row] for row in rows),
    ]
    return "\n".join(aligned(row, column_widths(texts)) for row in texts)


def column_widths(texts: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column; a text over ``WIDTH_MAX`` shifts only its own row."""
    return [
        max(len(text) for text in column if len(text) <= WIDTH_MAX)
        for column in zip(*texts, strict=True)
    ]


def aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """Format one line of a table."""
    return "  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip()


def cell_text(value: object) -> str:
    """Format a value for a table; a dash stands for None and for an empty string."""
    if value is None or value == "":
        return "-"
    return str(value).lower() if isinstance(value, bool) else escaped(str(value))


def escaped_lines(text: str) -> str:
    """Escape each line, so that a client's names and texts cannot control the terminal."""
    return "\n".join(map(escaped, text.split("\n")))


def human_bytes(count: int) -> str:
    """Format a size: bytes below 1 KiB, else one decimal in the largest unit."""
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
    """Format rows as comma-separated values, one line each."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    return written.getvalue()


def csv_row(item: Shape) -> list[object]:
    """Return the values of one item, in the order of its keys."""
    return [_cell(value) for value in _plain(item).values()]


def _plain(item: msgspec.Struct) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(item)
    return plain


def _cell(value: object) -> object:
    """Convert a value for CSV; a list or an object becomes JSON."""
    return json.dumps(value) if isinstance(value, dict | list) else value
