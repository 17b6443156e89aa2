"""How long the event loop is held: the CPU time of its longest callback."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator


class Longest:
    """The most CPU time that one callback of the loop took, and which callback it was."""

    took_s = 0.0
    callback = ""

    def note(self, took_s: float, handle: asyncio.Handle) -> None:
        """Keep this callback if it took longer than all before."""
        if took_s > self.took_s:
            self.took_s, self.callback = took_s, repr(handle).partition(" at 0x")[0]


@contextlib.contextmanager
def longest_callback() -> Iterator[Longest]:
    """Time every callback by wrapping `Handle._run`, through which the loop calls them all."""
    longest = Longest()
    run_it = vars(asyncio.Handle)["_run"]

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run_it(handle)
        longest.note(time.thread_time() - began, handle)

    setattr(asyncio.Handle, "_run", timed)  # noqa: B010 - a private method, in a benchmark
    try:
        yield longest
    finally:
        setattr(asyncio.Handle, "_run", run_it)  # noqa: B010
