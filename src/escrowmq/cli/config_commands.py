"""``escrowmq config``: show the effective settings and where each came from."""

from __future__ import annotations

import os
from typing import cast

import typer

from escrowmq.cli.config import Config, load
from escrowmq.cli.options import FileOption, Output, OutputOption, SetOption
from escrowmq.cli.output import print_list
from escrowmq.cli.shapes.tool_shapes import SettingShape, Value

app = typer.Typer()

VALUE_WIDTH_MAX = 24


@app.command()
def show(
    file: FileOption = None, set_: SetOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Print every setting, its value, and where the value came from."""
    loaded = load(file=file, environ=os.environ, flags=set_ or ())
    print_list(SettingShape, shapes_of(loaded), output, lambda: as_table(loaded))


def shapes_of(config: Config) -> list[SettingShape]:
    """Convert every setting to its JSON shape."""
    return [
        SettingShape(key=one.name, value=cast("Value", one.value), origin=one.origin)
        for one in config.settings
    ]


def as_table(config: Config) -> str:
    """Align the columns, on a terminal and in a pipe alike, so that grep and awk can read them."""
    rows = [("KEY", "VALUE", "ORIGIN")]
    rows += [(setting.name, str(setting.value), setting.origin) for setting in config.settings]
    name_width = max(len(name) for name, _, _ in rows)
    # A longer value shifts only its own row, not the ORIGIN column of every row.
    value_width = max(len(value) for _, value, _ in rows if len(value) <= VALUE_WIDTH_MAX)
    return "\n".join(
        f"{name:{name_width}}  {value:{value_width}}  {origin}" for name, value, origin in rows
    )
