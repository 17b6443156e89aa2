"""State stores of every kind for the crash tests, with the databases that they need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

import psycopg

from escrowmq.transaction.policy import CheckPolicy
from tests.ledger.conftest import postgres_server

KINDS = ("mapped", "sqlite", "postgresql")


Databases: TypeAlias = Callable[[str, Path], str]
"""Makes an empty database of a kind, maybe in a folder, and returns its URL."""


@contextmanager
def databases() -> Iterator[Databases]:
    """Yield a function that makes an empty database, and returns its URL; empty for `mapped`.

    PostgreSQL starts with the first of its databases, and stops at the end of the block.
    """
    with ExitStack() as servers:

        @cache
        def postgres() -> str:
            url: str = servers.enter_context(postgres_server()).get_uri()
            return url

        def make(kind: str, folder: Path) -> str:
            if kind == "sqlite":
                return f"sqlite:///{folder / 'state.db'}"
            if kind == "mapped":
                return ""
            with psycopg.connect(postgres(), autocommit=True) as connection:
                # The connections of killed processes may still hold locks for a moment.
                connection.execute("DROP SCHEMA public CASCADE")
                connection.execute("CREATE SCHEMA public")
            return postgres()

        yield make


def policy_with(policy: CheckPolicy, url: str) -> CheckPolicy:
    """Return the settings with the state store in this database, or in mapped files."""
    return replace(policy, state_store="sql" if url else "mapped", state_url=url)
