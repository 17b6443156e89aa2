"""How far the lake lags behind under a steady load, and how fast a backlog is archived.

    python -m bench.pipeline archive [BACKLOG]

Load: 2,000 transactions per second from a process of its own, through a real broker, with the
pipeline as a service beside it. A message's lag is the time from when consumers could see it to the
commit that added it to the table. Backlog: a broker with BACKLOG committed transactions, archived
by one run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it has no type stubs

from bench.figures.common import report, scratch
from bench.figures.cpu import CpuTimes
from bench.figures.filled import fill
from bench.figures.loaded_latency import load
from bench.pipeline.beside import UNDECIDED, pipeline
from bench.pipeline.idle import rest
from bench.pipeline.source import name_topic
from escrowmq.pipeline.archive.archiving import archive_once
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.extent import extents
from escrowmq.pipeline.lake.tables import MESSAGES
from escrowmq.pipeline.source.queues import TopicSelection, known
from escrowmq.pipeline.spark.session import spark_session
from tests.fuzz.served import Served, served

RATE = 2_000
#: Time for the pipeline to start and to work off its first backlog.
WARM_UP_S = 30
MEASURED_S = 40
ARCHIVED_S_MAX = 120.0
BACKLOG = 1_000_000


def main(arguments: list[str]) -> None:
    """Report the two lags and the two backlog rates."""
    backlog = int(arguments[0]) if arguments else BACKLOG
    with scratch() as path:
        under_load(path)
    with scratch() as path:
        catching_up(path, backlog)


def under_load(path: Path) -> None:
    """Report how old messages are when the lake has them."""
    lake = Lake(path / "pipeline" / "lake")
    with served(path) as broker, pipeline(path / "pipeline", broker, path / "cache"):
        load(broker, WARM_UP_S, RATE, undecided=UNDECIDED)
        since_ms = time.time_ns() // 1_000_000
        before = archived(lake)
        told = load(broker, MEASURED_S, RATE, undecided=UNDECIDED)
        until_s = time.monotonic() + ARCHIVED_S_MAX
        while archived(lake) < visible(broker) and time.monotonic() < until_s:
            rest(0.5)
        # The producer of the last undecided transactions is gone, so those never become visible.
        expected = visible(broker)
        lags = np.concatenate([one for one in lags_ms(lake, since_ms) if len(one)])
        places = lake.open(MESSAGES).to_pyarrow_table(columns=["queue_id", "queue_offset"])
        doubled = places.num_rows - places.group_by(places.column_names).aggregate([]).num_rows
    details = {
        "rate_per_s": round(told["per_s"]),
        "messages": len(lags),
        "archived_before": before,
        # Messages may be missing if the machine is too busy to finish in time; none may be doubled.
        "missing": expected - places.num_rows,
        "doubled": doubled,
    }
    report("archive_lag_ms", float(np.percentile(lags, 50)), "ms", **details)
    report("archive_lag_max_ms", float(lags.max()), "ms", p99_ms=float(np.percentile(lags, 99)))


def visible(broker: Served) -> int:
    """Number of messages that consumers can see."""
    spans = known([broker.address], TopicSelection((), ".*"), patience_s=0).spans
    return sum(span.end - span.start for span in spans.values())


def archived(lake: Lake) -> int:
    """Number of messages in the lake."""
    return sum(one.rows for one in extents(lake) if one.table == MESSAGES.name)


def lags_ms(lake: Lake, since_ms: int) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Yield, for each commit, the lag of each message that became visible since `since_ms`."""
    table = Path(lake.uri_of(MESSAGES))
    for entry in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
        at_ms = next(one["commitInfo"]["timestamp"] for one in actions if "commitInfo" in one)
        for action in actions:
            # Compacted files bring no new messages.
            if action.get("add", {}).get("dataChange"):
                file = table / unquote(action["add"]["path"])
                column = pq.ParquetFile(file).read(columns=["visible_at_ms"]).column(0)
                visible_at_ms = column.to_numpy()
                yield at_ms - visible_at_ms[visible_at_ms >= since_ms]


def catching_up(path: Path, backlog: int) -> None:
    """Report how fast one run archives the whole backlog."""
    fill(path / "data", backlog)
    spark = spark_session(PipelineConfig(), cache=path / "cache")
    with served(path) as broker:
        name_topic(broker)
        cpu = CpuTimes(broker=broker.process.pid)
        began = time.perf_counter()
        places = (str(path / "lake"), str(path / "checkpoints"))
        done = archive_once(spark, [broker.address], *places)
        took = time.perf_counter() - began
        spent = cpu.spent()
    spark.stop()
    # One more message created the topic.
    assert done.rows["messages"] == backlog + 1, done
    rows = sum(done.rows.values())
    facts = {**done.rows, "took_s": round(took, 1), **spent}
    report("archive_rows_per_s", rows / took, "1/s", **facts)
    report("archive_messages_per_s", backlog / took, "1/s")
