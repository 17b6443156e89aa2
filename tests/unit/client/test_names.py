"""Names that ``import escrowmq`` provides, and packages that it loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

import escrowmq
import escrowmq.testing

HEAVY = {"grpc", "numpy", "pandas", "psycopg", "pyarrow", "pyspark", "rich", "sqlalchemy", "typer"}


@pytest.mark.parametrize("package", [escrowmq, escrowmq.testing], ids=lambda one: one.__name__)
def test_every_name_is_there(package: object) -> None:
    names: list[str] = package.__all__  # type: ignore[attr-defined]
    assert names == sorted(names)
    assert set(names) <= set(dir(package))
    for name in names:
        assert getattr(package, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        package.Nothing  # type: ignore[attr-defined] # noqa: B018


def loaded_by(program: str) -> set[str]:
    """Return the packages outside the standard library that a program loads in a fresh Python."""
    told = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in told.stdout.split()} - sys.stdlib_module_names


def test_importing_it_imports_nothing_else() -> None:
    program = "import escrowmq, sys; assert 'asyncio' not in sys.modules"
    assert loaded_by(program) >= {"escrowmq"}


def test_producers_consumers_and_ledgers_load_nothing_heavy() -> None:
    program = (
        "from escrowmq import AsyncProducer, AsyncConsumer, Consumer, Producer, SqlLedger\n"
        "Producer('127.0.0.1:9876', group='orders', ledger=SqlLedger('sqlite:///orders.db'))\n"
        "Consumer('127.0.0.1:9876', group='shipping')"
    )
    loaded = loaded_by(program)
    assert "msgspec" in loaded
    assert loaded & HEAVY == set()
