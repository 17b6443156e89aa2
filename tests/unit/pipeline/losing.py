"""A proxy that loses answers: the broker executes a request, but the caller gets no answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable
from typing import Self

from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.frames import FrameSplitter, RemotingFrame

Loses = Callable[[NativeCode, int], bool]
"""Whether to lose the answer to the nth request of a kind, counted from 0."""


class LosingProxy:
    """Forwards each caller's requests to the broker, one at a time per connection."""

    def __init__(self, broker_address: str, loses: Loses) -> None:
        host, _, port = broker_address.rpartition(":")
        self._broker = (host, int(port))
        self._loses = loses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        #: Number of requests of each kind that were forwarded to the broker.
        self.brought: Counter[NativeCode] = Counter()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        # Wakes the thread that is blocked in accept().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _begin(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            self._begin(lambda caller=caller: self._relay(caller))  # type: ignore[misc]  # mypy cannot tell the type

    def _relay(self, caller: socket.socket) -> None:
        with caller, socket.create_connection(self._broker) as broker:
            asked, answered = FrameSplitter(), FrameSplitter()
            while True:
                data, frame = _frame(caller, asked)
                if frame is None:
                    return
                code = NativeCode(frame.code)
                is_lost = self._is_lost(caller, code)
                self.brought[code] += 1
                broker.sendall(data)
                data, frame = _frame(broker, answered)
                if frame is None or is_lost:
                    return
                caller.sendall(data)

    def _is_lost(self, _caller: socket.socket, code: NativeCode) -> bool:
        return self._loses(code, self.brought[code])


def _frame(
    connection: socket.socket, splitter: FrameSplitter
) -> tuple[bytes, RemotingFrame | None]:
    """Return the received bytes and the frame; the frame is None if the connection closed."""
    data = b""
    while True:
        try:
            chunk = connection.recv(256 * 1024)
        except OSError:
            chunk = b""
        if not chunk:
            return data, None
        data += chunk
        for frame in splitter.feed(chunk):
            return data, frame
