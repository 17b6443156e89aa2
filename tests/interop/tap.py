"""A proxy between clients and a server that records the frames.

It forwards all bytes unchanged, and decodes them on the way.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.interop.remoting import JSON_HEADER_MASK, Frame, read_exactly

RESPONSE_FLAG = 0x1
Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request and its response, which is None for a one-way request."""

    label: str
    server: str
    from_client: bool
    request: Frame
    response: Frame | None


class Tap:
    """The recording proxy. Use it in a ``with`` block; ``label`` names the current action."""

    def __init__(self, server: str, listen: Address, target: Address) -> None:
        self.server = server
        self.label = ""
        self.exchanges: list[Exchange] = []
        self._target = target
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(listen)

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"{host}:{port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        with self._lock:
            for one in [self._listener, *self._sockets]:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                with self._lock:
                    self._sockets += [client, server]
                waiting: dict[tuple[bool, int], tuple[str, Frame]] = {}
                for ends in ((client, server, True), (server, client, False)):
                    pump = threading.Thread(target=self._pump, args=(*ends, waiting), daemon=True)
                    pump.start()

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        from_client: bool,  # noqa: FBT001 - a thread's arguments have no names
        waiting: dict[tuple[bool, int], tuple[str, Frame]],
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                head = read_exactly(source, 4)
                data = read_exactly(source, struct.unpack(">I", head)[0])
                self._note(data, from_client=from_client, waiting=waiting)
                sink.sendall(head + data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _note(
        self,
        data: bytes,
        *,
        from_client: bool,
        waiting: dict[tuple[bool, int], tuple[str, Frame]],
    ) -> None:
        if struct.unpack_from(">I", data)[0] & ~JSON_HEADER_MASK:
            return  # A binary header; no client here writes one by default.
        frame = Frame.decode(data)
        with self._lock:
            if not frame.flag & RESPONSE_FLAG:
                label = self.label
                if frame.flag:
                    self._add(label, frame, None, from_client=from_client)
                else:
                    waiting[from_client, frame.opaque] = (label, frame)
            elif asked := waiting.pop((not from_client, frame.opaque), None):
                self._add(*asked, frame, from_client=not from_client)

    def _add(
        self, label: str, request: Frame, response: Frame | None, *, from_client: bool
    ) -> None:
        self.exchanges.append(
            Exchange(
                label=label,
                server=self.server,
                from_client=from_client,
                request=request,
                response=response,
            )
        )
