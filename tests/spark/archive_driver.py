"""A driver in its own process: archives everything, and kills itself on the way.

    python -m tests.spark.archive_driver FOLDER BROKER STEP

It leads a process group that includes its JVM, and kills that group.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from escrowmq.pipeline.archive import messages as archive_messages
from escrowmq.pipeline.archive.archiving import archive_once
from escrowmq.pipeline.archive.tasks import written_by
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.tables import MESSAGES, LakeTable
from escrowmq.pipeline.spark.session import spark_session

#: After the files are written, before they are committed; or after the commit, before Spark knows.
STEPS = ("written", "committed")


def die() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def writes_and_dies(*arguments: Any) -> Any:  # noqa: ANN401 -- passed on
    written_by(*arguments)
    die()


def arrange(step: str) -> None:
    """Make this process die at the step."""
    assert step in STEPS
    if step == "written":
        setattr(archive_messages, "written_by", writes_and_dies)  # noqa: B010 -- a planted fault
        return
    commit = Lake.commit

    def commits_and_dies(lake: Lake, table: LakeTable, files: Any, entitled: Any) -> bool:  # noqa: ANN401 -- passed on
        done = commit(lake, table, files, entitled)
        if table is MESSAGES and files:
            die()
        return done

    setattr(Lake, "commit", commits_and_dies)  # noqa: B010 -- as above


def main(folder: Path, broker: str, step: str) -> None:
    arrange(step)
    scratch = folder / f"driver-{os.getpid()}"
    scratch.mkdir()
    config = PipelineConfig(master="local[2]", shuffle_partitions=2)
    options = ("-XX:TieredStopAtLevel=1",)
    spark = spark_session(config, cache=scratch, scratch=scratch, jvm_options=options)
    archive_once(spark, [broker], str(folder / "lake"), str(folder / "checkpoints"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
