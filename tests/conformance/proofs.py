"""The tests that tables name as proofs."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tests.unit.repository import ROOT, parse


def missing_tests(named: Iterable[str]) -> set[str]:
    """Return those of these tests that pytest does not collect: each a path, ``::`` and a name."""
    wanted = set(named)
    there = {
        f"{path}::{node.name}"
        for path in {test.partition("::")[0] for test in wanted}
        for node in parse(ROOT / "tests" / path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    }
    return wanted - there
