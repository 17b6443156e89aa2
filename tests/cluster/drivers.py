"""Drivers in processes of their own, which may be killed on the way."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.cluster.cluster import PYTHON_PATH, ROOT, Cluster
from tests.interop.child import Child

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spark.streams import Stream

DRIVER_S_MAX = 300.0


class Drivers:
    """Runs drivers one after another, each until it ends."""

    def __init__(self, cluster: Cluster, stream: Stream, folder: Path) -> None:
        self._cluster = cluster
        self._stream = stream
        self._folder = folder
        self._count = 0

    def run(self, fault: str = "") -> int:
        """Run the stream; return the exit status."""
        self._count += 1
        arguments = (self._cluster.url, self._folder, self._stream.broker_address, fault)
        driver = Child(
            "driver",
            [sys.executable, "-m", "tests.cluster.driver", *arguments],
            log=self._folder / f"driver-{self._count}.log",
            environment={"PYTHONPATH": PYTHON_PATH},
            directory=ROOT,
        )
        try:
            return driver.wait(DRIVER_S_MAX)
        finally:
            driver.kill()
