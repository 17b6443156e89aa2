"""Found by Spark: of modules whose name begins with ``pyspark_`` it takes ``DefaultSource``."""

from escrowmq.pipeline.data_source import EscrowSource as DefaultSource

__all__ = ["DefaultSource"]
