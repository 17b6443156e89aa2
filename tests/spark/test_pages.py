"""What the pages on Spark show is run, each page with a broker of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.testing import InProcessBroker
from tests.unit.repository import blocks, relative
from tests.unit.test_docs import SPARK_PAGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("page", SPARK_PAGES, ids=relative)
def test_a_page_shows_what_is_true(page: Path, spark: SparkSession) -> None:
    with InProcessBroker() as broker:
        known = {"spark": spark, "broker": broker.broker_address}
        for block in blocks(page):
            if block.kind == "python":
                exec(compile(block.body, str(block), "exec"), known)
