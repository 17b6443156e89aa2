"""The promises of tests/spark/test_sink.py, on two hosts."""

from tests.spark.test_sink import *  # noqa: F403
