"""The look-up process stays small: nothing that it imports needs Spark, pyarrow or numpy."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.unit.repository import modules, relative

HEAVY = ("numpy", "pandas", "pyarrow", "pyspark", "sqlalchemy", "typer")

PROGRAM = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(*sorted(set(sys.argv[2:]) & sys.modules.keys()))
"""

NAMES = [
    relative(path).removeprefix("src/").removesuffix(".py").replace("/", ".")
    for path in modules("src/escrowmq/look_up")
]


@pytest.mark.parametrize("name", NAMES)
def test_a_module_of_look_up_imports_nothing_heavy(name: str) -> None:
    command = [sys.executable, "-c", PROGRAM, name.removesuffix(".__init__"), *HEAVY]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
