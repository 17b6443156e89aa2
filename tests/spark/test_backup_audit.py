"""The audit finds nothing wrong with a restored backup that was taken under load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.cli.main import main
from escrowmq.pipeline.audit.compare import AuditRequest
from escrowmq.pipeline.audit.job import run_audit
from escrowmq.testing import InProcessBroker
from tests.unit.cli.test_backup import SMALL, Load, visible
from tests.unit.cli.test_serve import serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(*words: str | Path) -> None:
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    assert left.value.code == 0


def test_a_backup_that_was_taken_under_load_is_sound(spark: SparkSession, tmp_path: Path) -> None:
    backup, data = tmp_path / "backup", tmp_path / "restored"
    with serving(tmp_path / "data", *SMALL) as (_, address):
        load = Load(address, seed=3)
        with load.running():
            load.until(200)
            run("backup", backup, "--broker", address)
    run("restore", backup, "--data-dir", data)
    with InProcessBroker(data=data) as broker:
        assert visible(broker)
        report = run_audit(spark, AuditRequest(brokers=(broker.broker_address,)))
    assert report.findings == []
    assert not report.has_failed, report.comparisons
