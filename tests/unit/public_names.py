"""Collects every name that users rely on: ``python -m tests.unit.public_names`` records them.

``public_names.json`` holds the names of the last release, one per line. ``test_public_names.py``
compares it with the code. A name is recorded with the text that a change must not alter without
notice: a signature, a type with its default, a kind with its labels.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from types import ModuleType
from typing import get_type_hints

import escrowmq
from escrowmq import lake, spark, testing
from escrowmq.broker.pages.metric_table import METRICS
from escrowmq.cli.config import SECTIONS
from escrowmq.look_up.ledger_config import LedgerConfig
from escrowmq.pipeline.archive.archiving import ArchiveSummary
from escrowmq.pipeline.lake.tables import SETTLE_ROUNDS, TABLES
from escrowmq.pipeline.lake.upkeep import UpkeepSummary
from escrowmq.pipeline.service.jobs import facts_of
from escrowmq.pipeline.service.lanes import WorkDone
from escrowmq.pipeline.service.telemetry import BrokerFacts, Telemetry
from escrowmq.pipeline.settle.round_summary import RoundSummary
from escrowmq.testing import pytest_plugin
from tests.unit.cli.test_schemas import all_commands
from tests.unit.repository import ROOT, blocks, pages
from tests.unit.test_docs import raised

FILE = ROOT / "tests" / "unit" / "public_names.json"

Names = dict[str, str]

#: Special methods that users call through Python's syntax.
SYNTAX = {"__aenter__", "__aiter__", "__call__", "__enter__", "__iter__"}
#: Classes whose methods are those of an internal port, so only their names are public.
PORTS = {"MemoryTable"}
#: The address in Python's text of a default that is an object.
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
MODULE_PATH = re.compile(r"\b(?:[a-z_][\w]*\.)+(?=[A-Z])")
#: ``python -m escrowmq...`` in a page, and the same in the arguments of a subprocess.
PROGRAM = re.compile(r"-m\"?,?\s+\"?(escrowmq(?:\.\w+)+)")


#: Kinds of fenced blocks that hold Python.
PYTHON = {"py", "python"}


def python_names(module: ModuleType) -> Names:
    """Return the names of a package's ``__all__``, and the public members of its classes."""
    found: Names = {}
    for name in module.__all__:
        value = getattr(module, name)
        path = f"{module.__name__}.{name}"
        found[path] = described(value)
        if inspect.isclass(value) and name not in PORTS:
            found |= {f"{path}.{member}": text for member, text in members(value)}
    return found


def members(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the public members of a class that it or a base class of ours defines."""
    for name in dir(kind):
        home = next((one for one in kind.__mro__ if name in vars(one)), object)
        is_public = not name.startswith("_") or name in SYNTAX
        if is_public and home.__module__.startswith("escrowmq"):
            yield name, described(inspect.getattr_static(kind, name))


def described(value: object) -> str:
    """Return a signature, or what the value is, without the paths of modules."""
    match value:
        case staticmethod() | classmethod():
            text = f"{type(value).__name__} {described(value.__func__)}"
        case enum.Enum():
            text = repr(value.value)
        case property():
            text = f"property{described(value.fget)}"
        case type() if issubclass(value, enum.Enum):
            text = "enum"
        case type() if getattr(value, "__init__") is Exception.__init__:  # noqa: B009
            text = "exception"
        case _ if callable(value):
            text = ("async " if inspect.iscoroutinefunction(value) else "") + signature(value)
        case _:
            text = "field" if inspect.isdatadescriptor(value) else type(value).__name__
    return text


def signature(call: Callable[..., object]) -> str:
    """Return the parameters, their types and defaults, and the type of the result."""
    found = inspect.signature(call)
    parameters = [
        one.replace(annotation=unquoted(one.annotation)) for one in found.parameters.values()
    ]
    result = unquoted(found.return_annotation)
    text = str(found.replace(parameters=parameters, return_annotation=result))
    return MODULE_PATH.sub("", ADDRESS.sub("", text))


class Unquoted(str):
    """An annotation that is printed as it is written."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def unquoted(annotation: object) -> object:
    return Unquoted(annotation) if isinstance(annotation, str) else annotation


def fixture_names() -> Names:
    """Return pytest's fixtures."""
    return {name: "fixture" for name in vars(pytest_plugin) if name.startswith("escrowmq_")}


def shown_imports() -> Names:
    """Return each import and each ``python -m`` of escrowmq in guides and examples."""
    examples = sorted((ROOT / "examples").rglob("*.py"))
    code = [block.body for page in pages() for block in blocks(page) if block.kind in PYTHON]
    code += [path.read_text(encoding="utf-8") for path in examples]
    text = [path.read_text(encoding="utf-8") for path in [*pages(), *examples]]
    found = {name: what for body in code for name, what in imports(ast.parse(body))}
    return found | {name: "program" for one in text for name in PROGRAM.findall(one)}


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield what a program imports of escrowmq: modules, and names with their modules."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((one.name, "module") for one in names if is_ours(one.name))
            case ast.ImportFrom(module=str(home), names=names) if is_ours(home):
                yield from ((f"{home}:{one.name}", "name") for one in names)


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == "escrowmq"


def resolve(shown: str) -> object:
    """Import what a guide imports, as it does."""
    home, _, name = shown.partition(":")
    module = import_module(home)
    return getattr(module, name) if name else module


def cli_names() -> Names:
    """Return every command, and its options and arguments with their types and defaults."""
    found: Names = {}
    for words, command in all_commands().items():
        found[words] = "command"
        types = parameter_types(command.callback)
        for one in command.params:
            if getattr(one, "hidden", False):
                continue
            is_option = one.param_type_name == "option"
            shown = ", ".join([*one.opts, *one.secondary_opts]) if is_option else one.name.upper()
            rest = ", required" if one.required else f" = {plain(one.default)}"
            found[f"{words} {shown}"] = cli_type(types[one.name]) + rest
    return found


def parameter_types(command: Callable[..., object]) -> dict[str, object]:
    """Return the types of a command's parameters, which may be the fields of a dataclass."""
    types = get_type_hints(command)
    grouped = types.get("given")
    return get_type_hints(grouped) if dataclasses.is_dataclass(grouped) else types


def cli_type(kind: object) -> str:
    """Return the type of an option, or its choices."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return f"one of {', '.join(str(one.value) for one in kind)}"
    return kind.__name__ if inspect.isclass(kind) else MODULE_PATH.sub("", str(kind))


def plain(value: object) -> str:
    """Return a default as text."""
    return str(value.value if isinstance(value, enum.Enum) else value) or "''"


def error_codes() -> Names:
    """Return each error code with its classes."""
    found: Names = {}
    for code, kind in sorted(raised()):
        found[code] = f"{found[code]}, {kind}" if code in found else kind
    return found


def settings() -> Names:
    """Return each setting with its type and default."""
    sections = {**SECTIONS, "ledger.NAME": LedgerConfig}
    return {
        f"{section}.{field.name}": f"{field.type} = {field.default!r}"
        for section, kind in sections.items()
        for field in fields(kind)
    }


def metrics() -> Names:
    """Return the metrics of a broker and of a pipeline."""
    found = {
        name: f"{one.kind} ({', '.join(one.labels)})"
        for one in METRICS
        for name in (one.name, one.also)
        if name
    }
    return found | dict(re.findall(r"^# TYPE (\w+) (\w+)$", worked().metrics(), re.MULTILINE))


def worked() -> Telemetry:
    """Return the telemetry of a pipeline that did each kind of work once."""
    # The service appends settle rounds by itself, and does not count their rows.
    rows = {name: 0 for name in TABLES if name != SETTLE_ROUNDS.name}
    telemetry = Telemetry(master="local", started_at_ms=0)
    telemetry.brokers["broker"] = BrokerFacts(address="broker")
    settled = RoundSummary(started_at_ms=0, took_ms=0, brokers=1, unknown={"REASON": 0})
    archived = ArchiveSummary(rows=rows, lag_ms=0, is_complete=True, took_ms=0)
    kept = UpkeepSummary(files_merged=0, files_made=0, files_deleted=0, files_removed=0, took_ms=0)
    telemetry.settle.end(WorkDone("settle", facts_of(settled)), 0)
    telemetry.archive.end(WorkDone("archive", facts_of(archived)), 0)
    telemetry.upkeep.end(WorkDone("upkeep", facts_of(kept)), 0)
    return telemetry


def lake_columns() -> Names:
    """Return the columns of the lake's tables with their types."""
    return {
        f"{table.name}.{field.name}": str(field.type)
        for table in TABLES.values()
        for field in table.arrow_schema()
    }


SECTIONS_OF_NAMES: Mapping[str, Callable[[], Names]] = {
    "escrowmq": lambda: python_names(escrowmq),
    "escrowmq.testing": lambda: python_names(testing) | fixture_names(),
    "escrowmq.spark": lambda: python_names(spark),
    "escrowmq.lake": lambda: python_names(lake),
    "imports in guides": shown_imports,
    "commands": cli_names,
    "error codes": error_codes,
    "settings": settings,
    "metrics": metrics,
    "lake tables": lake_columns,
}


def recorded() -> dict[str, Names]:
    """Return the recorded names by section."""
    read: dict[str, Names] = json.loads(FILE.read_text(encoding="utf-8"))
    return read


def record() -> None:
    """Write the names of the code as it is now."""
    now = {section: collect() for section, collect in SECTIONS_OF_NAMES.items()}
    text = json.dumps(now, indent=1, sort_keys=True, ensure_ascii=False)
    FILE.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    record()
