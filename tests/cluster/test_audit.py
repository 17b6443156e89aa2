"""An audit on two hosts, one of which dies in the middle, has the same result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from escrowmq.pipeline.audit.compare import AuditRequest
from escrowmq.pipeline.audit.findings import ComparedEvidence
from escrowmq.pipeline.audit.job import run_audit
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.cluster.cluster import Cluster
from tests.cluster.deadly import DeadlyWay
from tests.spark.audit_day import Day, live

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slice
def test_a_host_dies_while_a_day_is_audited(spark: SparkSession, cluster: Cluster) -> None:
    with InProcessBroker() as broker:
        live(Day(broker.broker_address))
        with DeadlyWay(broker.broker_address, cluster, NativeCode.LIST_OPS) as way:
            report = run_audit(spark, AuditRequest(brokers=(way.address,)))
            assert way.victim
    assert not report.has_failed
    assert report.findings == []
    (records,) = (one for one in report.comparisons if one.compared is ComparedEvidence.RECORDS)
    assert records.counts.items() >= {"half_messages": 49, "committed": 11}.items()
