"""The h2 library, which refuses every frame that breaks a rule, as a client of the door."""

from __future__ import annotations

import asyncio

import h2.config
import h2.connection
import h2.events

from escrowmq.protocol.http2.grpc_messages import MESSAGE_HEAD
from tests.unit.broker.grpc_echo import ECHO, Echo, echo_service

CALLS = 20
BODY = bytes(range(256)) * 400


class StrictClient:
    """Makes calls with the h2 library."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self._rules = h2.connection.H2Connection(config)
        self._rules.initiate_connection()
        self._data: dict[int, bytes] = {}
        self.trailers: dict[int, list[tuple[str, str]]] = {}

    async def call(self, message: bytes) -> tuple[int, bytes]:
        """Return the stream and the answer."""
        stream_id = self._rules.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", ECHO),
            (":authority", "test"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("x-number", str(stream_id)),
        ]
        self._rules.send_headers(stream_id, headers)
        data = MESSAGE_HEAD.pack(0, len(message)) + message
        while data:
            size = min(
                self._rules.local_flow_control_window(stream_id),
                self._rules.max_outbound_frame_size,
                len(data),
            )
            if size:
                is_last = size == len(data)
                self._rules.send_data(stream_id, data[:size], end_stream=is_last)
                data = data[size:]
            else:
                await self._exchange()
        while stream_id not in self.trailers:
            await self._exchange()
        return stream_id, self._data.pop(stream_id)[MESSAGE_HEAD.size :]

    async def _exchange(self) -> None:
        self._writer.write(self._rules.data_to_send())
        async with asyncio.timeout(10):
            received = await self._reader.read(1 << 16)
        assert received, "the door closed the connection"
        for event in self._rules.receive_data(received):
            match event:
                case h2.events.DataReceived():
                    stream_id = event.stream_id
                    self._data[stream_id] = self._data.get(stream_id, b"") + event.data
                    self._rules.acknowledge_received_data(
                        event.flow_controlled_length, event.stream_id
                    )
                case h2.events.TrailersReceived():
                    self.trailers[event.stream_id] = [
                        (str(name), str(value)) for name, value in event.headers
                    ]
        self._writer.write(self._rules.data_to_send())

    async def close(self) -> None:
        self._rules.close_connection()
        self._writer.write(self._rules.data_to_send())
        self._writer.close()
        await self._writer.wait_closed()


async def connect(echo: Echo) -> StrictClient:
    return StrictClient(*await asyncio.open_connection("127.0.0.1", echo.port))


async def test_a_strict_client_finds_no_fault() -> None:
    async with echo_service() as echo:
        client = await connect(echo)
        for number in range(CALLS):
            body = BODY[: number * 6_000]
            stream_id, found = await client.call(body)
            assert found == body
            assert client.trailers[stream_id] == [("grpc-status", "0")]
        await client.close()
        assert not echo.counts
