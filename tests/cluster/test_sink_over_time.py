"""The promises of tests/spark/test_sink_over_time.py, on two hosts."""

from tests.spark.test_sink_over_time import *  # noqa: F403
