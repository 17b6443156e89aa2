"""A plain message whose answer is lost: the sender cannot tell whether the broker stored it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from escrowmq.client.network.connection import BrokerConnection
from escrowmq.model.errors import OutcomeUnknown
from tests.unit.broker.wire import SEND, eventually, sending, serving, visible

READ_BYTES = 65_536


@asynccontextmanager
async def relay(address: str, *, to_broker: bool, to_client: bool) -> AsyncIterator[str]:
    """Forward bytes to a broker and back, or drop those of one direction."""
    host, _, port = address.rpartition(":")
    copying: list[asyncio.Task[None]] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bool) -> None:  # noqa: FBT001
        with closing(writer):
            while data := await reader.read(READ_BYTES):
                if kept:
                    writer.write(data)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        copying.append(asyncio.create_task(copy(reader, back, to_broker)))
        copying.append(asyncio.create_task(copy(there, writer, to_client)))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for one in copying:
            one.cancel()
        await asyncio.gather(*copying, return_exceptions=True)


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_timeout_leaves_the_sender_in_doubt(tmp_path: Path, *, is_stored: bool) -> None:
    async with serving(tmp_path) as server:
        lossy = relay(server.broker_address, to_broker=is_stored, to_client=False)
        async with lossy as address:
            connection = await BrokerConnection.open(address, lambda *_: None)
            # The same error, whether the request or its answer was lost.
            with pytest.raises(OutcomeUnknown, match="request_timed_out"):
                await connection.ask(SEND, sending(), b"paid", timeout_s=0.2)
            await eventually(lambda: len(visible(server)) == is_stored)
            connection.close()
