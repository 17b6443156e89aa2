"""Spark with EscrowMQ: ``session()`` starts one, ``register(spark)`` is for a session of yours.

Both make ``format("escrowmq")`` work in any Python program, also where Spark alone would not find
it.  ``from_avro`` decodes Avro bodies to typed columns.  ``PipelineConfig`` and ``spark_session``
start Spark with the settings of the pipeline.
"""

from __future__ import annotations

from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.source.typed_bodies import from_avro
from escrowmq.pipeline.spark.registering import register
from escrowmq.pipeline.spark.session import session, spark_session

__all__ = ["PipelineConfig", "from_avro", "register", "session", "spark_session"]
