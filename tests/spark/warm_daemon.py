"""Daemon that forks Spark's Python workers with everything imported.

Spark's own daemon imports nothing before it forks, so each of the thousands of workers in the tests
would spend half a second on the same imports.
"""

from __future__ import annotations

import pandas as pd  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute  # type: ignore[import-untyped]  # the same
import pyspark.sql.worker.create_data_source
import pyspark.sql.worker.plan_data_source_read
import pyspark.worker
from pyspark.daemon import manager

import escrowmq.pipeline.data_source

#: Imported for the workers.
WARM = (pd, pyarrow.compute, pyspark.worker, pyspark.sql.worker, escrowmq.pipeline.data_source)

if __name__ == "__main__":
    manager()
