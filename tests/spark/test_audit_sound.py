"""An audit finds nothing where nothing is wrong, whatever a broker has been through."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.pipeline.audit_compare import AuditRequest
from escrowmq.pipeline.audit_job import run_audit
from escrowmq.testing import InProcessBroker
from tests.spark.audit_day import Day, live

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_day_with_everything_in_it_is_sound(spark: SparkSession, tmp_path: Path) -> None:
    with InProcessBroker(data=tmp_path) as broker:
        live(Day(broker.broker_address))
        report = run_audit(spark, AuditRequest(brokers=(broker.broker_address,)))
        assert report.findings == []
