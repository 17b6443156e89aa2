"""The tests that the page about clusters names as proof exist."""

from __future__ import annotations

import re

from tests.unit.repository import ROOT


def test_each_test_that_is_named_exists_and_runs_on_a_cluster() -> None:
    page = (ROOT / "docs/operate/cluster.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    there = "".join(file.read_text(encoding="utf-8") for file in ROOT.glob("tests/cluster/*.py"))
    for taken in re.findall(r"^from tests\.spark\.(\w+) import \*", there, re.MULTILINE):
        there += (ROOT / f"tests/spark/{taken}.py").read_text(encoding="utf-8")
    assert named
    assert named <= set(re.findall(r"^def (test_\w+)", there, re.MULTILINE))
