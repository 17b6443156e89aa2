"""When a pipeline's rounds began and ended, for its heartbeats and its reports."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from escrowmq.protocol.message.limits import NAME_CHARS_MAX


class RoundProgress:
    """The rounds of this process. Any thread may read and write."""

    def __init__(self) -> None:
        #: The pipeline's name in heartbeats and reports.
        self.pipeline = f"{socket.gethostname()}/{os.getpid()}"[:NAME_CHARS_MAX]
        self._lock = threading.Lock()
        self._began_s: float | None = None
        #: When the last successful round that read a broker ended, by broker.
        self._ended_s: dict[str, float] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Note that a round runs inside this block."""
        with self._lock:
            self._began_s = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._began_s = None

    def succeeded(self, brokers: Iterable[str]) -> None:
        """Note that a round has read these brokers and succeeded."""
        with self._lock:
            self._ended_s |= dict.fromkeys(brokers, time.monotonic())

    def ended_ago_ms(self, broker: str) -> int | None:
        """How long ago the last successful round of a broker ended; None if there was none."""
        with self._lock:
            return _ago_ms(self._ended_s.get(broker))

    def running_ms(self) -> int | None:
        """How long the round under way has been running; None if none is."""
        with self._lock:
            return _ago_ms(self._began_s)


def _ago_ms(at_s: float | None) -> int | None:
    return None if at_s is None else int((time.monotonic() - at_s) * 1_000)
