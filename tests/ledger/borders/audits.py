"""The audit at the end of a program: it finds what the broker's restores lost, and nothing else."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.pipeline.audit.business import BusinessTable
from escrowmq.pipeline.audit.compare import AuditRequest
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.audit.job import run_audit
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.spark.session import spark_session
from tests.ledger.borders.model import Wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from escrowmq.pipeline.audit.report import AuditReport
    from tests.ledger.borders.model import Found, Model
    from tests.ledger.borders.world import World

CASES_MAX = 10_000
Findings = dict[str, set[str]]


class Auditor:
    """Audits a program's broker, its ledger and its orders."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __call__(self, world: World, found: Found) -> None:
        """Compare the audit with the model, which has judged ``found`` already."""
        report = run_audit(self._spark, self._request(world, found))
        failed = [one.not_compared for one in report.comparisons if one.is_failed]
        if failed:
            raise Wrong(f"the audit could not compare: {failed}")
        told, expected = _told(report), expected_findings(world.model, found)
        if told != expected:
            raise Wrong(f"the audit finds {told}, not {expected}")
        (broker,) = report.brokers
        if broker.parked != len(found.parked):
            raise Wrong(f"the audit counts {broker.parked} as parked, not {found.parked}")
        world.counts["audits"] += 1
        world.counts["audits with findings"] += bool(told)

    def _request(self, world: World, found: Found) -> AuditRequest:
        # Orders of consumers, and orders that a user committed by hand, never have a message.
        silent = ", ".join(map(str, sorted(found.orders - world.model.told())))
        return AuditRequest(
            brokers=(world.broker.broker_address,),
            topics=world.topics,
            ledgers={"shop": world.shop.url},
            business=BusinessTable(
                url=world.shop.url,
                table="orders",
                key="number",
                where=f"number NOT IN ({silent})" if silent else "",
            ),
            cases_max=CASES_MAX,
        )


def expected_findings(model: Model, found: Found) -> Findings:
    """Return the orders whose messages were lost, and the ledger rows that no broker knows."""
    lost = model.lost()
    orders = {str(number) for one in lost for number in one.told}
    rows = {one.transaction_id for one in lost} & found.ledger.keys()
    expected = {
        FindingName.BUSINESS_ROW_WITHOUT_MESSAGE: orders,
        FindingName.LEDGER_ROW_UNKNOWN: rows,
    }
    return {name.value: cases for name, cases in expected.items() if cases}


def _told(report: AuditReport) -> Findings:
    told: Findings = {}
    for finding in report.findings:
        # The order number is in the text: "orders.number = 7; 1 rows, 0 messages".
        cases = [
            case.transaction_id or case.detail.partition(";")[0].removeprefix("orders.number = ")
            for case in finding.cases
        ]
        told[finding.name.value] = set(cases)
        if len(set(cases)) != finding.total:
            raise Wrong(f"the audit counts {finding.total} of {finding.name}: {cases}")
    return told


@contextmanager
def auditing() -> Iterator[Auditor]:
    """Yield an auditor with its own Spark session."""
    with tempfile.TemporaryDirectory(prefix="escrowmq-borders-spark-") as folder:
        config = PipelineConfig(master="local[2,2]", shuffle_partitions=2)
        session = spark_session(config, cache=Path(folder) / "cache", scratch=Path(folder))
        try:
            yield Auditor(session)
        finally:
            session.stop()
