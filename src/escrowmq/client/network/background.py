"""An event loop in its own thread, for callers without an event loop.

All sync clients of a process share it. A forked child does not inherit threads: it gets a new loop
when it first needs one, and the parent keeps its open connections.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from escrowmq.model.errors import RequestRefused

T = TypeVar("T")


class BackgroundLoop:
    """A running event loop. ``background()`` returns the one of this process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="escrowmq", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run the coroutine on the loop and wait until it ends. Ctrl-C cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RequestRefused(
                "would_wait_for_itself", "call the async client inside of an async handler"
            )
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and its thread. The loop that a process shares is never closed."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


_lock = threading.Lock()
_backgrounds: list[BackgroundLoop] = []


def background() -> BackgroundLoop:
    """Return the loop of this process."""
    with _lock:
        if not _backgrounds or _backgrounds[-1].process != os.getpid():
            _backgrounds[:] = [BackgroundLoop()]
        return _backgrounds[-1]


def _after_fork() -> None:
    # The child does not have the thread that may hold the old lock.
    global _lock  # noqa: PLW0603 - a child needs an unlocked lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
