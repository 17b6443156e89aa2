"""A round of settle, for tests that leave something behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.pipeline.settle.ledgers import Ledgers
from escrowmq.pipeline.settle.settling import settle_round

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rolled_back(spark: SparkSession, broker_address: str) -> int:
    """Run a round; how many transactions it rolled back.  It must do nothing else."""
    done = settle_round(spark, [broker_address], Ledgers({}))
    assert (done.committed, done.asked, done.parked, done.refused, done.away) == (0, 0, 0, 0, ())
    return done.rolled_back
