"""The service maintains its lake beside settling and archiving, on a real Spark."""

from __future__ import annotations

import queue
import threading
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.model.clock import SystemClock
from escrowmq.pipeline.config import PipelineConfig, Places
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.tables import MESSAGES, PROGRESS
from escrowmq.pipeline.service.jobs import SparkJobs
from escrowmq.pipeline.service.service import PipelineService
from escrowmq.pipeline.service.telemetry import Facts
from escrowmq.testing import InProcessBroker
from tests.spark.topics import row, send
from tests.unit.pipeline.lake_rows import DAY_MS, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


WAIT_S = 200.0


class Told(SparkJobs):
    """Reports each upkeep of the lake."""

    done: queue.SimpleQueue[Facts]

    def keep_up(self, today: date) -> Facts:
        facts = super().keep_up(today)
        self.done.put(facts)
        return facts


def test_a_service_merges_small_files_and_deletes_old_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    now_ms = SystemClock().now_ms()
    for days, files in ((5, 1), (0, 10)):
        for number in range(files):
            seen = {"seen_at_ms": now_ms - days * DAY_MS, "queue_id": 0, "offset_after": number}
            lake.append(PROGRESS, rows_of(PROGRESS, seen), lambda _: ())
    with InProcessBroker() as broker:
        send(broker, row(b"a"))
        config = PipelineConfig(
            brokers=broker.broker_address, archive_interval_ms=200, lake_retention_days=2
        )
        places = Places(lake=lake.uri, checkpoints=str(tmp_path / "checkpoints"), cache=tmp_path)
        jobs = Told(spark, config, places, {})
        jobs.done = queue.SimpleQueue()
        service = PipelineService(config, jobs, clock=SystemClock())
        running = threading.Thread(target=service.run)
        running.start()
        try:
            facts = jobs.done.get(timeout=WAIT_S)
        finally:
            service.stop()
            running.join()
            jobs.tidy()
    assert facts["files_deleted"] == 1
    assert facts["files_merged"] == 10
    offsets = lake.open(PROGRESS).to_pyarrow_table().column("offset_after").to_pylist()
    assert sorted(offsets) == list(range(10))
    assert len(lake.open(PROGRESS).file_uris()) == 1
    assert lake.open(MESSAGES).to_pyarrow_table().num_rows == 1
