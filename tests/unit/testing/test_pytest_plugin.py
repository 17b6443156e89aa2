"""The plugin in a separate pytest run, as a user's project sees it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.unit.repository import ROOT

PLUGIN = "escrowmq.testing.pytest_plugin"

USERS_TESTS = """
import time

def test_a_message_is_sent(escrowmq_broker, escrowmq_clock):
    before_ms = escrowmq_clock.now_ms()
    escrowmq_broker.create_topic("orders")
    escrowmq_broker.advance(seconds=60)
    assert escrowmq_clock.now_ms() == before_ms + 60_000
    assert escrowmq_broker.messages("orders") == []

def test_another_test_has_another_broker(escrowmq_broker):
    assert escrowmq_broker.undecided() == []

def test_with_a_loop(escrowmq_async_broker):
    import asyncio
    asyncio.run(escrowmq_async_broker.run_checks())
"""


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_users_tests_get_their_broker(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(USERS_TESTS, encoding="utf-8")
    done = run(["-m", "pytest", "-q", "-W", "error", "-p", PLUGIN, "."], tmp_path)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_pytest_finds_the_plugin_by_itself() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["entry-points"]["pytest11"] == {"escrowmq": PLUGIN}


def test_a_project_that_does_not_use_it_pays_nothing(tmp_path: Path) -> None:
    seen = f"""
import sys, pytest
before = set(sys.modules)
import {PLUGIN}
print(sorted(name for name in set(sys.modules) - before if "." in name))
"""
    done = run(["-c", seen], tmp_path)
    small = ["escrowmq.model", "escrowmq.model.lazy_names"]
    assert done.stdout.strip() == str([*small, "escrowmq.testing", PLUGIN])
