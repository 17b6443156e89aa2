"""What tests/spark/test_sink.py promises, on two hosts."""

from tests.spark.test_sink import *  # noqa: F403
