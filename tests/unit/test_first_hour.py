"""The parts of ``make first-hour`` that need no network. Tests do not run the rest of it."""

from __future__ import annotations

import io
import re

import pytest

from bench.figures.first_hour import PLAIN, SPARK, await_ready, pinned, wanted
from tests.unit.repository import ROOT


def test_the_lock_gives_every_package_that_is_downloaded_its_version() -> None:
    versions = pinned((ROOT / "requirements/spark.txt").read_text(encoding="utf-8"))
    names = {re.split(r"[=\[]", one)[0].lower() for one in versions}
    assert len(versions) > 40
    assert not any("hash" in one or "\\" in one for one in versions)
    asked = {re.split(r"[^\w-]", one)[0].lower() for one in wanted("spark")}
    assert asked <= names
    assert "pyspark" in asked
    assert "pyspark" not in wanted("")


def test_a_broker_is_ready_when_everything_that_was_started_is() -> None:
    started = "broker   ready broker=127.0.0.1:1 name=127.0.0.1:2\n"
    assert await_ready(io.StringIO(started), PLAIN.ready) == "127.0.0.1:2"
    both = f"{started}pipeline ready jobs=settle\n"
    assert await_ready(io.StringIO(both), SPARK.ready) == "127.0.0.1:2"
    with pytest.raises(RuntimeError, match="before it was ready"):
        await_ready(io.StringIO(started), SPARK.ready)
