"""Generates reference pages from the code: ``make docs``.

The pages of settings, metrics, JSON output and our own requests are generated as a whole. In other
pages, the blocks between ``<!-- NAME: generated -->`` and ``<!-- NAME: end -->`` are generated.
Neither is edited by hand, and tests compare both with the code.

A field's description is the ``#:`` comment above it; settings that follow one comment without
their own share it.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, get_origin, get_type_hints

from escrowmq.cli.config import ENV_PREFIX, SECTIONS
from escrowmq.pipeline.ledger_config import LedgerConfig

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


def describe(kind: type, *, is_shared: bool = True) -> Iterator[tuple[str, str]]:
    """Yield each field of the class and its comment."""
    source = inspect.getsource(kind)
    lines = source.splitlines()
    comment = ""
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined] # it is a class
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        first = node.lineno - 1
        while lines[first - 1].lstrip().startswith("#:"):
            first -= 1
        above = lines[first : node.lineno - 1]
        last = comment if is_shared else ""
        comment = " ".join(line.strip().removeprefix("#:").strip() for line in above) or last
        yield node.target.id, comment


def _bounds(kind: type[DataclassInstance]) -> dict[str, tuple[object, object]]:
    table = getattr(sys.modules[kind.__module__], "_BOUNDS", ())
    return {name: (low, high) for name, low, high in table}


def _allowed(kind: object, bounds: tuple[object, object] | None) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(kind))
    if bounds:
        return f"`{bounds[0]}` to `{bounds[1]}`"
    return {int: "an integer", float: "a number", bool: "`true` or `false`"}.get(kind, "text")  # type: ignore[call-overload, no-any-return]


def fill(text: str, blocks: Mapping[str, str]) -> str:
    """Return the page with these blocks between their marks."""
    for name, block in blocks.items():
        before, begin, rest = text.partition(f"<!-- {name}: generated -->\n")
        _, end, after = rest.partition(f"\n<!-- {name}: end -->")
        assert begin, f"the page has no block {name}"
        assert end, f"the block {name} has no end"
        text = f"{before}{begin}{block}{end}{after}"
    return text


def blocks_of() -> dict[str, dict[str, str]]:
    """Return the generated blocks, by page."""
    from escrowmq.broker.life_cycle import life_cycle_table
    from escrowmq.cli import reference_disk
    from escrowmq.transaction.diagram import dues_table, mermaid

    return {
        "transaction-states.md": {
            "diagram": f"```mermaid\n{mermaid()}\n```",
            "rules": dues_table(),
        },
        "life-cycle.md": {"stages": life_cycle_table()},
        "disk-format.md": reference_disk.blocks(),
    }


def whole_pages() -> dict[str, str]:
    """Return the pages that are generated as a whole, by file name."""
    from escrowmq.cli import reference_metrics, reference_output, reference_own

    return {
        reference_output.PAGE: reference_output.page(),
        reference_output.SCHEMA: reference_output.schema_document(),
        "config.md": page(),
        "metrics.md": reference_metrics.page(),
        "own-requests.md": reference_own.page(),
    }


def write(folder: Path) -> None:
    """Write all pages in the folder."""
    for name, text in whole_pages().items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, blocks in blocks_of().items():
        path = folder / name
        path.write_text(fill(path.read_text(encoding="utf-8"), blocks), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
