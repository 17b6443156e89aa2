"""Spark with EscrowMQ: ``session()`` starts a session, ``register(spark)`` extends an existing one.

Both make ``format("escrowmq")`` work in any Python program, even where Spark alone would not find
it. ``from_avro`` decodes Avro bodies to typed columns. ``PipelineConfig`` and ``spark_session``
start Spark with the settings of the pipeline.
"""

from __future__ import annotations

from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.source.typed_bodies import from_avro
from escrowmq.pipeline.spark.registering import register
from escrowmq.pipeline.spark.session import session, spark_session

__all__ = ["PipelineConfig", "from_avro", "register", "session", "spark_session"]
