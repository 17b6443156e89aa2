"""Registers ``format("escrowmq")`` with a session that did not find it by itself.

Spark looks for data sources with the ``python3`` of the PATH, unless ``PYSPARK_PYTHON`` names
another one. If a script runs with a virtual environment's Python but the environment is not
activated (an IDE, cron, Jupyter), that ``python3`` lacks EscrowMQ.
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
    """Make ``format("escrowmq")`` known to this session. Calling it again is harmless.

    With a ``local`` master, the session's tasks then run with this Python, unless
    ``PYSPARK_PYTHON`` names another one. On a cluster, the machines' own Python must have EscrowMQ;
    with Spark Connect, the server's Python must have it.

    After this call, ``df.write`` without a mode fails with a note that names the mode to use. This
    note does not work with Spark Connect.
    """
    from pyspark.errors import PySparkException

    from escrowmq.pipeline.data_source import EscrowSource

    if is_classic(spark):
        explain_save_mode()
        _take_this_python(spark)
    try:
        spark.dataSource.register(EscrowSource)
    except PySparkException as error:
        # Spark found the source by itself, and does not let a caller replace it.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def is_classic(spark: SparkSession) -> bool:
    """Whether the session has its own JVM and does not talk to a Spark Connect server."""
    return not type(spark).__module__.startswith("pyspark.sql.connect")


def _take_this_python(spark: SparkSession) -> None:
    context = spark.sparkContext
    if is_local(context.master or ""):
        # Otherwise Spark takes the "python3" of the PATH, which may lack our packages.
        context.pythonExec = os.environ.get(PYTHON_VARIABLE) or sys.executable
