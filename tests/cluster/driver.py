"""A driver in its own process: runs a stream on a cluster, and may be killed on the way.

    python -m tests.cluster.driver MASTER FOLDER BROKER [FAULT]

It leads a process session that includes its JVM. A fault kills that session.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.cluster.cluster import cluster_session
from tests.spark.streams import Stream


def main(master: str, folder: Path, broker_address: str, fault: str) -> None:
    spark = cluster_session(master, folder / f"driver-{os.getpid()}")
    stream = Stream(spark, folder, broker_address)
    if "," in broker_address:
        # Give each broker rows.
        stream.columns = ("value", "value AS key")
    faults = {"fault": fault, "victims": str(os.getsid(0))} if fault else {}
    stream.run(**faults)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], "".join(sys.argv[4:5]))
