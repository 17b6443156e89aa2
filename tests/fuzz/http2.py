"""Fuzz the gRPC door with spoiled frames: ``python -m tests.fuzz.http2 [--frames N] [--seed S]``.

Each connection begins like that of a real client. Its frames are sound, spoiled, in the wrong
order, or not frames at all, and come in pieces. The door must raise nothing, must send only valid
frames, must tell each handler the end of its call once, and must hold nothing for connections that
are gone.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import hpack

from escrowmq.broker.config import BrokerConfig
from escrowmq.broker.net.grpc_connection import GrpcConnection
from escrowmq.broker.net.grpc_door import GrpcDoor
from escrowmq.broker.net.grpc_limits import GrpcLimits
from escrowmq.broker.net.limits import ConnectionLimits
from escrowmq.protocol.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_DEFAULT,
    FRAME_HEAD,
    FRAME_HEAD_BYTES,
    PREFACE,
    SETTINGS_ACK,
    WINDOW_MAX,
    FrameKind,
    Http2Setting,
    frame,
    rst_stream,
    settings_frame,
    window_update,
)
from escrowmq.protocol.http2.grpc_messages import MESSAGE_HEAD
from escrowmq.protocol.http2.violations import Http2Error
from tests.fuzz.remoting import (
    EXTREMES,
    GROWTH_BLOCKS_MAX,
    GROWTH_BYTES_MAX,
    held,
    pieces,
    run_program,
    spoil,
)
from tests.unit.broker.grpc_echo import (
    CHAT,
    ECHO,
    HEADER,
    MANY,
    SILENT,
    Heard,
    methods,
    openings_with,
)

DEFAULT_FRAMES = 1_000_000
FRAMES_PER_CONNECTION = 60
#: Caches fill during the first connections; after that, memory must not grow.
WARM_UP_CONNECTIONS = 200
PATHS = (ECHO, ECHO, ECHO, CHAT, MANY, SILENT, HEADER, "/no/Such", "")
FIELDS = (
    ("grpc-timeout", "1S"),
    ("grpc-timeout", "1n"),
    ("grpc-timeout", "x"),
    ("grpc-encoding", "gzip"),
    ("content-length", "6"),
    ("x-mq-client-id", "fuzz@1"),
    ("x-long", "v" * 300),
    ("te", "gzip"),
    ("connection", "close"),
    ("X-Upper", ""),
    (":late", ""),
)
#: The only reasons for which the door may end a connection.
EXPECTED = {"http2_malformed", "slow_reader_cut", "waiting_bytes_cut", "unread_bytes_cut"}
LIMITS = GrpcLimits(message_bytes_max=100_000, streams_max=20, unsent_bytes_max=1 << 20)


class Socket(asyncio.Transport):
    """A transport that keeps what the door sends."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self._reads = reads
        self.sent: list[bytes] = []
        self._is_closing = False

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.sent.append(data)

    def get_write_buffer_size(self) -> int:
        return 0 if self._reads else sum(map(len, self.sent))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close


class Session:
    """Makes the frames of one connection."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._encoder = hpack.Encoder()
        self._next_id = 1

    def start(self) -> bytes:
        """Return the first bytes."""
        random = self._random
        settings = {
            Http2Setting.INITIAL_WINDOW_SIZE: random.choice((0, 10, 65_535, 2**31 - 1)),
            Http2Setting.MAX_FRAME_SIZE: random.choice((16_384, 2**24 - 1)),
        }
        if random.random() < 0.3:
            settings[Http2Setting.HEADER_TABLE_SIZE] = 0
        start = PREFACE + settings_frame(settings)
        if random.random() < 0.8:
            self._encoder.header_table_size = 0
            start += SETTINGS_ACK
        return start

    def _block(self) -> bytes:
        random = self._random
        fields = [
            (":method", random.choice(("POST", "POST", "POST", "POST", "GET"))),
            (":scheme", "http"),
            (":path", random.choice(PATHS)),
            ("content-type", random.choice(("application/grpc",) * 6 + ("text/html",))),
        ]
        if random.random() < 0.3:
            fields.append(random.choice(FIELDS))
        block: bytes = self._encoder.encode(fields, huffman=random.random() < 0.7)
        return spoil(random, block) if random.random() < 0.005 else block

    def _stream_id(self) -> int:
        return max(1, self._next_id - 2 * self._random.randrange(1, 7))

    def _request(self) -> bytes:
        random = self._random
        stream_id, self._next_id = self._next_id, self._next_id + 2
        flags = END_HEADERS if random.random() < 0.95 else 0
        request = frame(FrameKind.HEADERS, flags, stream_id, self._block())
        if not flags:
            request += frame(FrameKind.CONTINUATION, END_HEADERS, stream_id, b"")
        return request + self._data(stream_id)

    def _data(self, stream_id: int) -> bytes:
        random = self._random
        message = random.randbytes(random.choice((0, 1, 100, 100, 5_000)))
        data = MESSAGE_HEAD.pack(random.random() < 0.05, len(message)) + message
        if random.random() < 0.1:
            data = spoil(random, data)[:FRAME_BYTES_DEFAULT]
        return frame(FrameKind.DATA, random.choice((0, END_STREAM, END_STREAM)), stream_id, data)

    def frame(self) -> bytes:
        """Return the next frame, or several that belong together."""
        random = self._random
        if self._next_id == 1 or random.random() < 0.4:
            made = self._request()
        elif random.random() < 0.04:
            made = self._any_frame()
        else:
            made = self._sound_frame()
        return spoil(random, made) if random.random() < 0.01 else made

    def _any_frame(self) -> bytes:
        random = self._random
        return frame(
            random.choice(list(FrameKind)),
            random.randrange(256),
            random.choice((0, 1, self._stream_id())),
            random.randbytes(random.choice((0, 4, 5, 6, 8, 30))),
        )

    def _sound_frame(self) -> bytes:
        """Return a frame that a client may send after its requests, or almost."""
        random = self._random
        makers: tuple[Callable[[], bytes], ...] = (
            lambda: self._data(self._stream_id()),
            lambda: window_update(random.choice((0, self._stream_id())), 10_000),
            lambda: window_update(self._stream_id(), random.choice(EXTREMES) & WINDOW_MAX),
            lambda: rst_stream(self._stream_id(), Http2Error.CANCEL),
            lambda: frame(FrameKind.PING, random.choice((0, ACK)), 0, b"draining"),
            lambda: settings_frame({Http2Setting.INITIAL_WINDOW_SIZE: random.randrange(100_000)}),
            lambda: frame(FrameKind.PRIORITY, 0, self._stream_id(), bytes(5)),
            lambda: frame(FrameKind.GOAWAY, 0, 0, bytes(8)),
        )
        return random.choice(makers)()


def frames_in(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield kind, stream and payload of each frame."""
    at = 0
    while at < len(data):
        word, _flags, stream_id = FRAME_HEAD.unpack_from(data, at)
        end = at + FRAME_HEAD_BYTES + (word >> 8)
        assert end <= len(data), "a frame is cut off"
        yield word & 0xFF, stream_id, data[at + FRAME_HEAD_BYTES : end]
        at = end


def judge_sent(sent: bytes, counts: Counter[str]) -> None:
    """Check that all frames that the door sent are valid."""
    decoder = hpack.Decoder()
    for kind, stream_id, payload in frames_in(sent):
        counts[FrameKind(kind).name] += 1
        if kind == FrameKind.HEADERS:
            assert stream_id % 2
            decoder.decode(payload)


def try_connection(random: Random, door: GrpcDoor, heard: Heard, counts: Counter[str]) -> None:
    """Play one connection from its first byte to its end."""
    connection = GrpcConnection(door)
    transport = Socket(reads=random.random() < 0.9)
    connection.connection_made(transport)
    session = Session(random)
    data = session.start() if random.random() < 0.99 else random.randbytes(50)
    for _ in range(random.randrange(FRAMES_PER_CONNECTION)):
        counts["frames"] += 1
        data += session.frame()
        if random.random() < 0.3:
            for piece in pieces(random, data) if random.random() < 0.1 else (data,):
                if not transport.is_closing():
                    connection.data_received(piece)
            data = b""
            answer_one(random, heard)
            while connection._streams.has_more and not transport.is_closing():
                connection.take_turn(door.time() + 1.0)
    connection.connection_lost(None)
    judge_sent(b"".join(transport.sent), counts)
    assert heard.counts["opened"] == heard.counts["closed"]
    assert not door.connections
    assert door.shared.waiting.bytes == door.shared.unread.bytes == 0
    heard.calls.clear()


def answer_one(random: Random, heard: Heard) -> None:
    """Answer a call that waits, or that is over."""
    if heard.calls and random.random() < 0.5:
        call = random.choice(heard.calls)
        random.choice((call.end, call.expire, lambda: call.answer(b"late")))()


async def play(seed: int, frames: int) -> Counter[str]:
    """Play connections until enough frames were made."""
    counts: Counter[str] = Counter()
    heard = Heard()
    door = GrpcDoor(methods(heard), LIMITS, openings_with(None, ConnectionLimits(BrokerConfig())))
    failed: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: failed.append(str(what)))
    blocks, peak_bytes = held()
    number = 0
    while counts["frames"] < frames:
        number += 1
        if number == WARM_UP_CONNECTIONS:
            blocks, peak_bytes = held()
        try:
            try_connection(Random(f"{seed}/{number}"), door, heard, counts)
        except Exception as error:
            error.add_note(f"seed {seed}, connection {number}")
            raise
        # Let the event loop run what was scheduled.
        await asyncio.sleep(0)
        assert not failed, failed
    door.deadlines.close()
    blocks_now, peak_bytes_now = held()
    assert blocks_now - blocks < GROWTH_BLOCKS_MAX, "memory grows"
    assert peak_bytes_now - peak_bytes < GROWTH_BYTES_MAX, "memory grows"
    limits = door.shared.counts
    assert set(limits) <= EXPECTED, limits
    counts["connections"] = number
    counts["ended_by_the_door"] = sum(limits.values())
    counts["calls"] = heard.counts["opened"]
    return counts


def fuzz(seed: int, frames: int) -> Counter[str]:
    """Try this many frames; a fault is raised with the connection's number in a note."""
    return asyncio.run(play(seed, frames))


def main(words: list[str] | None = None) -> int:
    """Fuzz; return 1 if a fault was found."""
    return run_program("http2", fuzz, DEFAULT_FRAMES, words)


if __name__ == "__main__":
    sys.exit(main())
