"""Brokers with a state store, and what it holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from escrowmq.broker.native.status import status
from escrowmq.broker.server import Server
from escrowmq.broker.write import following
from escrowmq.broker.write.following import Following
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.state_store import StateStore
from tests.unit.broker.wire import eventually, serving

if TYPE_CHECKING:
    import pytest

KINDS = ("mapped", "sql")


def run_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run rounds only when the test says so, and do not rest long."""
    monkeypatch.setattr("escrowmq.broker.server.CHECK_S", 3_600.0)
    monkeypatch.setattr(following, "RETRY_S", 0.02)


@asynccontextmanager
async def broker(folder: Path, kind: str, **policy: Any) -> AsyncIterator[Server]:  # noqa: ANN401
    url = f"sqlite:///{folder / 'elsewhere' / 'state.db'}" if kind == "sql" else ""
    (folder / "elsewhere").mkdir(parents=True, exist_ok=True)
    chosen = {"checked_by": "broker", "state_store": kind, "state_url": url, **policy}
    async with serving(folder / "data", policy=chosen, broker={"http_port": 0}) as server:
        yield server


def follower(server: Server) -> Following:
    found = server.broker.writer.following
    assert found is not None
    return found


async def held(server: Server) -> list[int]:
    """Return the undecided half offsets, as the state store has them."""
    led = follower(server)
    await eventually(lambda: led.follower.is_equal and not led.follower.lag_rows)

    def snapshot(states: StateStore) -> list[int]:
        rows: list[int] = states.snapshot(0, NEVER)["half_offset"].tolist()
        return rows

    return await led.ask(snapshot)


async def end_connection(server: Server) -> None:
    """End the connection to the database, and have the state store used soon.

    The connection is closed in the state store's own thread: SQLite crashes the process if a
    connection is closed while another thread uses it.
    """

    def close(states: StateStore) -> None:
        states._database.close()  # type: ignore[attr-defined]

    led = follower(server)
    await led.ask(close)
    led.follower.beat()
    server.broker.writer._schedule()


async def held_again(server: Server) -> list[int]:
    """Return the undecided half offsets once the next work has succeeded."""
    follower(server).follower.beat()
    server.broker.writer._schedule()
    await eventually(lambda: status(server.broker).state_store_state == "follows")
    return await held(server)
