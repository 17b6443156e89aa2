"""What tests/spark/test_sink_over_time.py promises, on two hosts."""

from tests.spark.test_sink_over_time import *  # noqa: F403
