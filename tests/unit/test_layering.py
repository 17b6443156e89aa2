"""Imports go one way. Every change of a table here needs an ADR."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from escrowmq.broker.broker import Broker
from tests.unit.repository import PACKAGE, ROOT, imported, modules, parse, relative

MAY_IMPORT: dict[str, set[str]] = {
    # The package re-exports the names that users import.
    "__init__": {"client", "model"},
    "model": set(),
    # What policies say; pure, so that a broker, a tool and a test decide alike.
    "access": {"model"},
    "transaction": {"model"},
    "protocol": {"model"},
    "store": {"model", "transaction", "protocol"},
    "broker": {"access", "model", "transaction", "protocol", "store"},
    "client": {"model", "protocol"},
    # Looks ledgers up, for the pipeline and in a child process of the broker.
    "look_up": {"client", "protocol", "model"},
    # Its tasks decode log records by the store's layout, which saves the broker that work.
    "pipeline": {"client", "look_up", "store", "transaction", "protocol", "model"},
    # Short names for parts of the pipeline that users import.
    "spark": {"pipeline"},
    "lake": {"pipeline"},
    # A module beside the package, where Spark looks for data sources.
    "pyspark_escrowmq": {"pipeline"},
    "console": {"client", "model"},
    # Knows processes, not brokers.
    "supervise": set(),
    # The order scenario, written as a user would write it.
    "demo": {"client", "model", "pipeline"},
    "cli": {
        "access",
        "demo",
        "model",
        "transaction",
        "protocol",
        "store",
        "broker",
        "client",
        "look_up",
        "pipeline",
        "console",
        "supervise",
    },
    # Doubles may use everything below them; only tests use the doubles.
    "testing": {"model", "transaction", "protocol", "store", "broker", "client", "pipeline"},
}

#: The same for the folders and modules of the pipeline.
PIPELINE_MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "priority": set(),
    "config": {"priority"},
    "options": set(),
    "brokers_round": set(),
    "spark_api": set(),
    "spark": {"config", "data_source"},
    "source": {"options", "spark_api"},
    "views": {"options", "source", "spark_api"},
    "sink": {"options", "spark_api", "views"},
    "data_source": {"options", "source", "views", "sink"},
    "lake": set(),
    "archive": {"data_source", "lake", "source", "spark_api", "views"},
    "settle": {"brokers_round", "sink", "views"},
    "pages": set(),
    "audit": {"lake", "pages", "source", "views"},
    "compare": {"audit", "brokers_round", "lake", "source", "views"},
    "service": {"archive", "compare", "config", "lake", "priority", "settle", "spark"},
}

#: The rooms of the other packages. Imports for type checkers only may also point upward.
PROTOCOL_MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "message": set(),
    "remoting": {"message"},
    # Frames, header compression and gRPC's framing; knows no message of ours.
    "http2": set(),
    "grpc": {"message", "remoting"},
    # Native requests travel in remoting frames.
    "native": {"message", "remoting"},
    "look_up": {"message", "native"},
    "signing": set(),
}
#: Commands and records of one subject each.
COMMANDS = {"pause_command"} | {f"{one}_commands" for one in ("expiry", "pop", "recall", "user")}
RECORDS = {f"{one}_records" for one in ("pop", "recall", "user")}
TRANSACTION_MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "policy": set(),
    "states": set(),
    **{name: set() for name in COMMANDS | RECORDS},
    "records": RECORDS,
    "rules": {"policy", "states"},
    "table": {"records", "states"},
    # The port of the state store.
    "state_store": {"records", "states", "table"},
    "commands": {*COMMANDS, "records", "states", "table"},
    "ledger_verdicts": {"commands", "rules"},
    "memory": {"pop_records", "records", "user_records"},
    "decisions": {
        *COMMANDS,
        *RECORDS,
        "commands",
        "memory",
        "policy",
        "records",
        "rules",
        "states",
        "table",
    },
    "core": {"commands", "decisions", "memory", "recall_records", "records", "states", "table"},
}
STORE_MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "config": set(),
    "disk": set(),
    "meta": set(),
    "index": {"disk"},
    "log": {"disk"},
    "queue": {"disk"},
    "table": {"disk", "queue"},
    "reading": {"disk", "index", "log", "queue"},
    # Adapters of the state store, then what all of them share.
    "mapped": {"disk"},
    "sql": {"disk"},
    "states": {"disk", "mapped", "sql"},
    "retention": {"disk", "log"},
    "checkpoint": {"disk", "index", "queue", "table"},
    "store": {"checkpoint", "disk", "index", "log", "queue", "table"},
    "recovery": {"checkpoint", "config", "disk", "log", "queue", "states", "store", "table"},
    "repair": {"checkpoint", "disk", "index", "log", "queue", "recovery", "retention", "table"},
}
#: Rooms that broker and server use.
IN_BOTH = {"access", "checks", "native", "net", "state", "write"}
BROKER_MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "config": set(),
    "access": {"config"},
    "periodic": set(),
    "state": set(),
    "write": {"config", "state"},
    "net": {"access", "config", "state", "write"},
    "pop": {"state", "write"},
    "checks": {"net", "state", "write"},
    "native": {"access", "checks", "net", "periodic", "pop", "state", "write"},
    # RocketMQ's tools get the status that native requests define.
    "rocketmq": {"checks", "native", "net", "pop", "state"},
    "grpc": {"access", "checks", "net", "pop", "state"},
    "pages": {"native", "net", "state"},
    "watch": {"native", "periodic"},
    # Parts for gRPC, made only where they are wanted.
    "grpc_making": {"grpc", "state"},
    "broker": IN_BOTH | {"grpc_making", "pop", "rocketmq"},
    "server": IN_BOTH | {"broker", "config", "grpc", "pages", "periodic", "watch"},
}
CLIENT_MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "config": set(),
    # Sync and async callers of the same steps.
    "trampoline": set(),
    "with_blocks": set(),
    "network": set(),
    "messages": {"network"},
    "database": {"network", "trampoline"},
    "ledger": {"database", "messages"},
    "producer": {
        "config",
        "database",
        "ledger",
        "messages",
        "network",
        "trampoline",
        "with_blocks",
    },
    "consumer": {
        "config",
        "database",
        "ledger",
        "messages",
        "network",
        "producer",
        "trampoline",
        "with_blocks",
    },
    # Old paths, for one release.
    "ledger_table": {"ledger"},
}
CLI_MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "convert": set(),
    "options": set(),
    "preview": set(),
    # RocketMQ's names of settings; the config loader uses them for hints.
    "rocketmq": set(),
    "shapes": set(),
    "tls_options": set(),
    "asking": {"options"},
    "config": {"convert", "rocketmq"},
    "main": {"preview", "shapes", "tls_options"},
    "output": {"options", "preview", "shapes"},
    "cert_commands": {"options", "output", "shapes"},
    "config_import": {"config", "preview", "rocketmq", "shapes"},
    "config_commands": {"config", "config_import", "options", "output", "rocketmq", "shapes"},
    "access": {"asking", "config", "options", "output", "shapes"},
    "admin": {"asking", "options", "output", "preview", "shapes"},
    "data": {"access", "asking", "config", "options", "output", "shapes"},
    "lake": {"asking", "config", "options", "output", "preview", "shapes"},
    "doctor": {"admin", "asking", "config", "options", "output", "preview", "shapes"},
    "run": {"config", "data", "options", "output", "shapes"},
    "txn": {"admin", "asking", "config", "lake", "options", "output", "preview", "shapes"},
}
ROOMS = {
    "broker": BROKER_MAY_IMPORT,
    "cli": CLI_MAY_IMPORT,
    "client": CLIENT_MAY_IMPORT,
    "pipeline": PIPELINE_MAY_IMPORT,
    "protocol": PROTOCOL_MAY_IMPORT,
    "store": STORE_MAY_IMPORT,
    "transaction": TRANSACTION_MAY_IMPORT,
}
TABLES = {"escrowmq": MAY_IMPORT, **{f"escrowmq.{name}": table for name, table in ROOMS.items()}}

#: Modules in one folder, besides ``__init__.py``.
MODULES_MAX = 25

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
PURE = ("access", "transaction", "protocol")


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
    found = imported(parse(path), name, for_types=whole == "escrowmq")
    return [
        f"{relative(path)} imports {target}"
        for target in found
        if (part := part_of(target, whole)) is not None and part not in allowed
    ]


def test_every_package_is_in_the_table() -> None:
    found = {path.parent.name for path in PACKAGE.glob("*/*.py")}
    loose = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    assert found <= MAY_IMPORT.keys()
    assert not loose, "a module belongs in one of the packages"


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_is_in_the_table_of_its_package(package: str) -> None:
    found = {path.parent.name for path in PACKAGE.glob(f"{package}/*/*.py")}
    found |= {path.stem for path in PACKAGE.glob(f"{package}/*.py")}
    assert found == ROOMS[package].keys()


@pytest.mark.parametrize("package", ROOMS)
def test_the_architecture_page_lists_the_rooms_in_order(package: str) -> None:
    """Each room has one row, below the rooms that it imports."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = page.partition(f"### `{package}/`\n")[2].partition("\n#")[0]
    listed = re.findall(r"^\| `(\w+)/` \|", section, re.MULTILINE)
    rooms = {path.parent.name for path in PACKAGE.glob(f"{package}/*/*.py")}
    assert sorted(listed) == sorted(rooms)
    table = ROOMS[package]
    late = [
        f"{room} imports {below}"
        for index, room in enumerate(listed)
        for below in table[room] & rooms
        if below not in listed[:index]
    ]
    assert late == []


def test_folders_are_small() -> None:
    folders = {path.parent for path in modules("src")}
    counts = {relative(folder): len(list(folder.glob("*.py"))) - 1 for folder in folders}
    assert {name: count for name, count in counts.items() if count > MODULES_MAX} == {}


@pytest.mark.parametrize("whole", TABLES)
def test_imports_go_one_way(whole: str) -> None:
    folder = whole.replace(".", "/") if whole != "escrowmq" else ""
    found = modules(f"src/{folder}")
    assert [text for path in found for text in violations(path, whole)] == []


def test_the_package_imports_nothing_of_the_folders_beside_it() -> None:
    beside = {"bench", "examples", "tests", "tools"}
    found = [
        f"{relative(path)} imports {target}"
        for path in modules("src")
        for target in imported(parse(path), module_name(path))
        if target.partition(".")[0] in beside
    ]
    assert found == []


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


def test_no_part_of_the_broker_knows_the_broker() -> None:
    """Each part gets what it uses; only the modules that build the broker import it."""
    broker = f"{Broker.__module__}.{Broker.__name__}"
    readers = {
        path.name
        for path in modules("src/escrowmq/broker")
        if broker in imported(parse(path), module_name(path))
    }
    assert readers == {"server.py", "grpc_making.py"}


def test_the_broker_reads_the_machines_clock_in_one_place() -> None:
    """All other code uses store time or the monotonic clock."""
    wall = re.compile(r"time\.time\(|time_ns\(|\b_clock\.now_ms\(|SystemClock")
    readers = {
        path.name
        for path in (PACKAGE / "broker").rglob("*.py")
        if wall.search(path.read_text(encoding="utf-8"))
    }
    # The clock in the last three returns store time.
    assert readers == {"broker_clock.py", "awaiting.py", "releasing.py", "writer.py"}


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
