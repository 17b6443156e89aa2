"""A thread that does one piece of work after the other, and tells how each ended."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    """A piece of work that has ended: with a result, or with an error."""

    name: str
    result: object = None
    error: BaseException | None = None


class Lane:
    """One at a time, in order.  The thread lives as long as the process: Spark ties much to it."""

    def __init__(self, name: str, listener: Callable[[Done], None]) -> None:
        self._listener = listener
        self._work: queue.SimpleQueue[tuple[str, Callable[[], object]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def do(self, name: str, work: Callable[[], object]) -> None:
        """Have it done; the listener is told, from the lane's thread."""
        self._work.put((name, work))

    def close(self) -> None:
        """Begin nothing more."""
        self._work.put(None)

    def _run(self) -> None:
        while (todo := self._work.get()) is not None:
            name, work = todo
            try:
                done = Done(name, result=work())
            except Exception as error:  # noqa: BLE001 -- whoever gave it is told
                done = Done(name, error=error)
            self._listener(done)
