"""Generates the reference page of the settings from the dataclasses that hold them."""

from __future__ import annotations

import inspect
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Literal, get_args, get_origin, get_type_hints

from escrowmq.cli.config import ENV_PREFIX, SECTIONS
from escrowmq.look_up.ledger_config import LedgerConfig
from tools.reference.comments import describe

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_HEAD = """\
# Settings

Written by `make docs` from the code; edit the dataclasses instead.

A setting can be given in four places. The first of them that has it wins:

1. a flag, `--set store.durability=os`
2. an environment variable, `ESCROWMQ_STORE__DURABILITY=os` (two underscores after the section)
3. the TOML file that `--config` or `ESCROWMQ_CONFIG` names
4. the default

Sizes and durations are plain integers; the unit is in the key's name. An unknown section or key is
an error, and so is a value out of its bounds. `escrowmq config show` prints every value and where
it came from.
"""


def page() -> str:
    """Return the page of settings."""
    sections = {**SECTIONS, "ledger.NAME": LedgerConfig}
    return "\n".join([_HEAD, *(_section(name, kind) for name, kind in sections.items())])


def _section(name: str, kind: type[DataclassInstance]) -> str:
    about = inspect.cleandoc(kind.__doc__ or "").partition("``.")[2].strip()
    rows = [
        f"## `[{name}]`",
        "",
        *([about, ""] if about else []),
        "| Key | Default | Allowed | What it does |",
        "|---|---|---|---|",
    ]
    descriptions = dict(describe(kind))
    types = get_type_hints(kind)
    bounds = _bounds(kind)
    for field in fields(kind):
        allowed = _allowed(types[field.name], bounds.get(field.name))
        rows.append(
            f"| `{field.name}` | `{field.default}` | {allowed} | {descriptions[field.name]} |"
        )
    variable = f"{ENV_PREFIX}{name.upper().replace('.', '__')}__"
    rows += ["", f"In the environment: `{variable}` and the key in capitals.", ""]
    return "\n".join(rows)


def _bounds(kind: type[DataclassInstance]) -> dict[str, tuple[object, object]]:
    table = getattr(sys.modules[kind.__module__], "_BOUNDS", ())
    return {name: (low, high) for name, low, high in table}


def _allowed(kind: object, bounds: tuple[object, object] | None) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(kind))
    if bounds:
        return f"`{bounds[0]}` to `{bounds[1]}`"
    return {int: "an integer", float: "a number", bool: "`true` or `false`"}.get(kind, "text")  # type: ignore[call-overload, no-any-return]
