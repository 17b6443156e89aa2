"""``escrowmq pipeline -o json``: one object per event, from a real round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.cli.main import main
from escrowmq.testing import InProcessBroker
from tests.unit.cli.schema_check import checked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_round_is_told_as_json_lines(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @contextmanager
    def session(*_: object) -> Iterator[SparkSession]:
        """Yield this session, because the command would start and stop its own Spark."""
        yield spark

    monkeypatch.setattr("escrowmq.pipeline.service.running._spark", session)
    with InProcessBroker() as broker, pytest.raises(SystemExit) as left:
        main(
            [
                *("pipeline", "--once", "--data-dir", str(tmp_path / "data")),
                *("--brokers", broker.broker_address, "-o", "json"),
            ]
        )
    told = capsys.readouterr()
    assert left.value.code == 0, told.err
    events = checked("pipeline", told.out)
    assert [one["text"].split()[0] for one in events] == [
        "settled",
        "compared",
        "archived",
        "kept_up",
    ]
    assert events[0]["facts"]["brokers"] == 1
