"""One cluster and one driver for all tests here; other drivers are separate processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.cluster.cluster import HOSTS, PYTHON_PATH, Cluster, cluster_session, spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark(whole_cluster: Cluster) -> Iterator[SparkSession]:
    """Start a driver in this process."""
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("PYTHONPATH", PYTHON_PATH, prepend=os.pathsep)
        session = cluster_session(whole_cluster.url, whole_cluster.folder / "driver")
        yield session
        session.stop()


@pytest.fixture(autouse=True)
def cluster(whole_cluster: Cluster, spark: SparkSession) -> Cluster:
    """Return the cluster with both hosts alive, whatever the last test did to it."""
    for host in HOSTS:
        if not whole_cluster.is_alive(host):
            whole_cluster.start_worker(host)
    spread(spark)
    return whole_cluster
