"""``escrowmq config``: show the settings and their origins, and import those of RocketMQ."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, cast

import typer

from escrowmq.cli.config import Config, load
from escrowmq.cli.options import FileOption, Output, OutputOption, SetOption, bad_option
from escrowmq.cli.output import print_list, print_table
from escrowmq.cli.shapes.tool_shapes import ImportedKeyShape, SettingShape, Value

app = typer.Typer()

VALUE_WIDTH_MAX = 24
EXIT_WRONG = 1


@app.command()
def show(
    file: FileOption = None, set_: SetOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Print every setting, its value, and where the value came from."""
    loaded = load(file=file, environ=os.environ, flags=set_ or ())
    print_list(SettingShape, shapes_of(loaded), output, lambda: as_table(loaded))


@app.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A RocketMQ broker's file, such as broker.conf.")
    ],
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE", help="Write the TOML here; print a table."),
    ] = None,
    *,
    output: OutputOption = Output.TABLE,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of --write.")] = False,
) -> None:
    """Convert a RocketMQ broker's settings to a TOML file, and say what becomes of each."""
    from escrowmq.cli.config_import import WRONG, as_toml, converted
    from escrowmq.cli.rocketmq.properties import read_properties

    rows = converted(read_properties(file))
    toml = as_toml(rows, file.name)
    if write is not None:
        _write(write, toml, source=file, force=force)
    if write is None and output is Output.TABLE:
        typer.echo(toml, nl=False)
    else:
        print_table(ImportedKeyShape, rows, output, ImportedKeyShape.__struct_fields__)
    if any(row.outcome in WRONG for row in rows):
        raise typer.Exit(EXIT_WRONG)


def _write(path: Path, text: str, *, source: Path, force: bool) -> None:
    try:
        if path.exists() and path.samefile(source):
            raise bad_option("--write", "another file than the one that is read", str(path))
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        allowed = "a file that does not exist yet; --force replaces it"
        raise bad_option("--write", allowed, str(path)) from None
    except OSError as error:
        allowed = f"a file that can be written: {error.strerror}"
        raise bad_option("--write", allowed, str(path)) from None


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
