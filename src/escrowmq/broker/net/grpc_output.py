"""What one gRPC connection sends: batches of frames, within the client's flow control.

Frames are gathered and written at once. Data beyond a window of the client waits in its call, and
calls that wait send in turn, a frame each. All unsent bytes of a connection count towards its limit
and towards the budget of all connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from escrowmq.protocol.http2.frames import (
    END_HEADERS,
    FRAME_BYTES_DEFAULT,
    FRAME_HEAD,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    FrameKind,
    frame,
)
from escrowmq.protocol.http2.header_blocks import TABLE_OFF
from escrowmq.protocol.http2.violations import Http2Error, violation

if TYPE_CHECKING:
    from escrowmq.broker.net.grpc_call import GrpcCall

GATHERED_BYTES_MAX = 256 * 1024
"""Above this, frames go to the socket at once."""
_FRAME_BYTES_MAX = 64 * 1024


class GrpcOutput:
    """Frames that wait to be written, and calls that wait for a window."""

    def __init__(self, written: Callable[[], None]) -> None:
        #: Called after each write, and when data is held back or forgotten.
        self._written = written
        self._loop = asyncio.get_running_loop()
        #: None before the connection is made, and after it is lost.
        self.transport: asyncio.Transport | None = None
        #: While true, a flush follows anyway.
        self.is_held = self._is_flush_scheduled = False
        self._out: list[bytes] = []
        self._out_bytes = self.held_back_bytes = 0
        #: Bytes that the client lets the broker send: on all streams together, on each new one.
        self.window = self.initial_window = WINDOW_DEFAULT
        self.frame_bytes_max = FRAME_BYTES_DEFAULT
        #: Whether the next header block must drop the client's dynamic table, and whether one did.
        self.must_drop_table = self._has_dropped_table = False
        #: Calls with data that their own window allows, in the order of their turns.
        self._ready: dict[GrpcCall, None] = {}

    def put(self, data: bytes) -> None:
        """Queue a frame, or several."""
        if self.transport is None:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if self.is_held or self._is_flush_scheduled:
            if self._out_bytes > GATHERED_BYTES_MAX:
                self.flush()
            return
        self._is_flush_scheduled = True
        self._loop.call_soon(self.flush)

    def put_headers(self, stream_id: int, block: bytes, flags: int = 0) -> None:
        """Queue a header block as one HEADERS frame."""
        if self.must_drop_table:
            self.must_drop_table = False
            block = TABLE_OFF + block
        self.put(frame(FrameKind.HEADERS, END_HEADERS | flags, stream_id, block))

    def drop_table(self) -> None:
        """Tell the client with the next header block that we use no dynamic table."""
        self.must_drop_table = not self._has_dropped_table
        self._has_dropped_table = True

    def flush(self) -> None:
        """Write everything that is queued; a connection that closes takes no more."""
        self._is_flush_scheduled = False
        transport = self.transport
        if transport is None or not self._out:
            return
        if not transport.is_closing():
            transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
        self._out.clear()
        self._out_bytes = 0
        self._written()

    # Flow control.

    def wait(self, call: GrpcCall, size: int) -> None:
        """Note that a call holds more data, and send as much as the windows allow."""
        self.held_back_bytes += size
        self.resume(call)
        if self.held_back_bytes:
            self._written()

    def resume(self, call: GrpcCall) -> None:
        """Send data of a call whose window may have room."""
        self._ready[call] = None
        self.pump()

    def drop(self, call: GrpcCall, size: int) -> None:
        """Forget the data of a call."""
        self._ready.pop(call, None)
        self.held_back_bytes -= size
        self._written()

    def widen(self, increment: int) -> None:
        """Widen the window of the connection."""
        if increment == 0:
            raise violation(Http2Error.PROTOCOL_ERROR, "a window update is empty")
        self.window += increment
        if self.window > WINDOW_MAX:
            raise violation(Http2Error.FLOW_CONTROL_ERROR, "the window is too large")
        if self._ready:
            self.pump()

    def pump(self) -> None:
        """Send data of the ready calls, a frame each in turn, while the window allows it."""
        ready = self._ready
        while ready and self.window > 0:
            call = next(iter(ready))
            del ready[call]
            room = min(call.window, self.window, self.frame_bytes_max, _FRAME_BYTES_MAX)
            if room <= 0:
                # It is ready again when its own window widens.
                continue
            data = call.take_held(room)
            size = len(data)
            call.window -= size
            self.window -= size
            self.held_back_bytes -= size
            self.put(FRAME_HEAD.pack(size << 8, 0, call.stream_id) + data)
            if call.held_bytes:
                ready[call] = None
            else:
                call.drained()

    def close(self) -> None:
        """Forget everything that is unsent."""
        self.transport = None
        self._out.clear()
        self._ready.clear()
        self.held_back_bytes = 0

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for a window or that the socket has not taken."""
        if self.transport is None:
            return 0
        return self.held_back_bytes + self._out_bytes + self.transport.get_write_buffer_size()
