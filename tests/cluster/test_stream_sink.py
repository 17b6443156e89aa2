"""What tests/spark/test_stream_sink.py promises, on two hosts."""

from tests.spark.test_stream_sink import *  # noqa: F403
