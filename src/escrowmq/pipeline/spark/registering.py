"""Makes ``format("escrowmq")`` known to a session that did not find it by itself.

Spark looks for data sources with the ``python3`` of the PATH, unless ``PYSPARK_PYTHON`` names
another.  In a script that a virtual environment's Python runs without the environment being
activated (an IDE, cron, Jupyter) that is a Python without EscrowMQ.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from escrowmq.pipeline.config import is_local
from escrowmq.pipeline.spark.save_mode import explain_save_mode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON_VARIABLE = "PYSPARK_PYTHON"


def register(spark: SparkSession) -> None:
    """Make ``format("escrowmq")`` known to this session; calling it again does no harm.

    On one machine (a ``local`` master) the session's tasks then run with this Python, unless
    ``PYSPARK_PYTHON`` names another.  On a cluster the machines' own Python must have EscrowMQ;
    with Spark Connect, the server's.

    ``df.write`` without a mode then fails with a note that names the mode to use, except with Spark
    Connect.
    """
    from pyspark.errors import PySparkException

    from escrowmq.pipeline.data_source import EscrowSource

    if is_classic(spark):
        explain_save_mode()
        _take_this_python(spark)
    try:
        spark.dataSource.register(EscrowSource)
    except PySparkException as error:
        # Spark found the source by itself and lets nobody replace it.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def is_classic(spark: SparkSession) -> bool:
    """Whether the session talks to a JVM of its own, not to a Spark Connect server."""
    return not type(spark).__module__.startswith("pyspark.sql.connect")


def _take_this_python(spark: SparkSession) -> None:
    context = spark.sparkContext
    if is_local(context.master or ""):
        # Otherwise "python3" of the PATH, which need not have our packages.
        context.pythonExec = os.environ.get(PYTHON_VARIABLE) or sys.executable
