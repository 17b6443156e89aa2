"""The promises of tests/spark/test_stream_sink.py, on two hosts."""

from tests.spark.test_stream_sink import *  # noqa: F403
