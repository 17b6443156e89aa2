"""The test cluster itself: no process of it is left, however its owner ends."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.cluster.cluster import PYTHON_PATH, ROOT, wait_until
from tests.interop.child import Child
from tests.spark.sessions import processes_of

#: Starts a cluster with executors and Python workers, prints its sessions, and waits.
OWNER = """
import sys
from pathlib import Path
from tests.cluster.cluster import Cluster, cluster_session
folder = Path(sys.argv[1])
with Cluster(folder) as cluster:
    spark = cluster_session(cluster.url, folder / "driver")
    assert spark.sparkContext.parallelize(range(4), 4).map(str).collect() == list("0123")
    print(*cluster.sessions(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_cluster_whose_owner_ends(tmp_path: Path, end: signal.Signals) -> None:
    owner = Child(
        "owner",
        [sys.executable, "-c", OWNER, tmp_path],
        log=tmp_path / "owner.log",
        environment={"PYTHONPATH": PYTHON_PATH, "JAVA_HOME": ""},
        directory=ROOT,
    )
    try:
        sessions = [owner.pid, *map(int, owner.stdout.readline().split())]
        assert all(processes_of(session) for session in sessions[1:])
        os.kill(owner.pid, end)
        wait_until(lambda: not any(map(processes_of, sessions)), "end of all processes")
    finally:
        owner.kill()
