"""Imports go one way. Every change of a table here needs an ADR."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.unit.repository import PACKAGE, imported, modules, parse, relative

MAY_IMPORT: dict[str, set[str]] = {
    # The package re-exports the names that users import.
    "__init__": {"client", "model"},
    "model": set(),
    "transaction": {"model"},
    "protocol": {"model"},
    "store": {"model", "transaction", "protocol"},
    "broker": {"model", "transaction", "protocol", "store"},
    "client": {"model", "protocol"},
    # Its tasks decode log records by the store's layout, which saves the broker that work.
    "pipeline": {"client", "store", "transaction", "protocol", "model"},
    # Short names for parts of the pipeline that users import.
    "spark": {"pipeline"},
    "lake": {"pipeline"},
    # A module beside the package, where Spark looks for data sources.
    "pyspark_escrowmq": {"pipeline"},
    "console": {"client", "model"},
    # The order scenario, written as a user would write it.
    "demo": {"client", "model", "pipeline"},
    "cli": {
        "demo",
        "model",
        "transaction",
        "protocol",
        "store",
        "broker",
        "client",
        "pipeline",
        "console",
    },
    # Doubles may use everything below them; only tests use the doubles.
    "testing": {"model", "transaction", "protocol", "store", "broker", "client", "pipeline"},
}

#: The same for the folders and modules of the pipeline.
PIPELINE_MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "priority": set(),
    "config": {"priority"},
    "ledger_config": set(),
    "options": set(),
    "spark_api": set(),
    "spark": {"config", "data_source"},
    "source": {"options", "spark_api"},
    "views": {"options", "source", "spark_api"},
    "sink": {"options", "spark_api", "views"},
    "data_source": {"options", "source", "views", "sink"},
    "lake": set(),
    "archive": {"data_source", "lake", "source", "spark_api", "views"},
    "settle": {"ledger_config", "sink", "views"},
    # HTML reports: style sheet, page frame, charts.
    "pages": set(),
    "audit": {"lake", "pages", "source", "views"},
    "service": {"archive", "config", "lake", "ledger_config", "priority", "settle", "spark"},
}
TABLES = {"escrowmq": MAY_IMPORT, "escrowmq.pipeline": PIPELINE_MAY_IMPORT}

# The core decides and the codecs translate; neither can reach a clock, a file or a socket.
OUTSIDE_WORLD = {
    "asyncio",
    "datetime",
    "logging",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "socket",
    "sqlite3",
    "subprocess",
    "threading",
    "time",
    "uuid",
}
PURE = ("transaction", "protocol")


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts)


def part_of(name: str, whole: str) -> str | None:
    """Return the part of the ``whole`` that a full name belongs to, or None."""
    before, _, rest = name.partition(f"{whole}.")
    return rest.partition(".")[0] if rest and not before else None


def violations(path: Path, whole: str) -> list[str]:
    name = module_name(path)
    here = part_of(name, whole) or name
    allowed = TABLES[whole].get(here, set()) | {here}
    return [
        f"{relative(path)} imports {target}"
        for target in imported(parse(path), name)
        if (part := part_of(target, whole)) is not None and part not in allowed
    ]


def test_every_package_is_in_the_table() -> None:
    found = {path.parent.name for path in PACKAGE.glob("*/*.py")}
    loose = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    assert found <= MAY_IMPORT.keys()
    assert not loose, "a module belongs in one of the packages"


def test_everything_in_the_pipeline_is_in_its_table() -> None:
    found = {path.parent.name for path in PACKAGE.glob("pipeline/*/*.py")}
    found |= {path.stem for path in PACKAGE.glob("pipeline/*.py")}
    assert found == PIPELINE_MAY_IMPORT.keys()


@pytest.mark.parametrize(("whole", "folder"), [("escrowmq", ""), ("escrowmq.pipeline", "pipeline")])
def test_imports_go_one_way(whole: str, folder: str) -> None:
    found = modules(f"src/escrowmq/{folder}") if folder else modules("src")
    assert [text for path in found for text in violations(path, whole)] == []


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_has_no_circle(table: dict[str, set[str]]) -> None:
    done: set[str] = set()
    while done != table.keys():
        ready = {name for name, below in table.items() if name not in done and below <= done}
        assert ready, f"a circle among {table.keys() - done}"
        done |= ready


@pytest.mark.parametrize("package", PURE)
def test_pure_packages_do_not_touch_the_outside_world(package: str) -> None:
    found = [
        f"{relative(path)} imports {target}"
        for path in modules(f"src/escrowmq/{package}")
        for target in imported(parse(path), module_name(path))
        if target.partition(".")[0] in OUTSIDE_WORLD
    ]
    assert found == []


def test_the_broker_reads_the_machines_clock_in_one_place() -> None:
    """All other code uses store time or the monotonic clock."""
    wall = re.compile(r"time\.time\(|time_ns\(|\b_clock\.now_ms\(|SystemClock")
    readers = {
        path.name
        for path in (PACKAGE / "broker").glob("*.py")
        if wall.search(path.read_text(encoding="utf-8"))
    }
    # The clock in releasing.py and writer.py returns store time.
    assert readers == {"broker_clock.py", "releasing.py", "writer.py"}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("import escrowmq.store.config", "escrowmq.store.config"),
        ("from escrowmq import store", "escrowmq.store"),
        ("from escrowmq.store import disk", "escrowmq.store.disk"),
        # Relative imports in escrowmq.model.errors.
        ("from ..store import disk", "escrowmq.store.disk"),
        ("from . import clock", "escrowmq.model.clock"),
        # Imports in a function, behind a guard, or by a call.
        ("def f():\n    import escrowmq.store", "escrowmq.store"),
        ("if TYPE_CHECKING:\n    import escrowmq.store", "escrowmq.store"),
        ("importlib.import_module('escrowmq.store')", "escrowmq.store"),
    ],
)
def test_the_reader_sees_every_way_to_import(source: str, target: str) -> None:
    assert list(imported(ast.parse(source), "escrowmq.model.errors")) == [target]
