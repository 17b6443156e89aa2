"""The code on the documentation pages about Spark runs, each page with its own brokers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.testing import InProcessBroker
from tests.unit.repository import blocks, pages, relative
from tests.unit.test_docs import SPARK_PAGES, needs_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PAGES = [page for page in pages() if page in SPARK_PAGES or any(map(needs_spark, blocks(page)))]


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_a_page_shows_what_is_true(page: Path, spark: SparkSession) -> None:
    with InProcessBroker() as broker, InProcessBroker(name="broker-b") as other:
        broker.create_topic("order-paid")
        brokers = f"{broker.broker_address},{other.broker_address}"
        known = {"spark": spark, "broker": broker.broker_address, "brokers": brokers}
        for block in blocks(page):
            if needs_spark(block) or (block.kind == "python" and page in SPARK_PAGES):
                exec(compile(block.body, str(block), "exec"), known)
