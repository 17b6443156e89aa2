"""A settle round for tests that leave attempts behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.look_up.ledgers import Ledgers
from escrowmq.pipeline.settle.settling import settle_round

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rolled_back(spark: SparkSession, broker_address: str) -> int:
    """Run a round that only rolls back; return how many transactions it rolled back."""
    done = settle_round(spark, [broker_address], Ledgers({}))
    assert (done.committed, done.asked, done.parked, done.refused, done.away) == (0, 0, 0, 0, ())
    return done.rolled_back
