"""A thread that runs one piece of work after another, and reports how each ended."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkDone:
    """A finished piece of work, with a result or an error."""

    name: str
    result: object = None
    error: BaseException | None = None


class WorkerThread:
    """Runs work in order. The thread lives as long as the process: Spark ties much state to it."""

    def __init__(self, name: str, listener: Callable[[WorkDone], None]) -> None:
        self._listener = listener
        self._work: queue.SimpleQueue[tuple[str, Callable[[], object]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def do(self, name: str, work: Callable[[], object]) -> None:
        """Queue the work. The lane's thread calls the listener when it has ended."""
        self._work.put((name, work))

    def close(self) -> None:
        """Start nothing more."""
        self._work.put(None)

    def _run(self) -> None:
        while (todo := self._work.get()) is not None:
            name, work = todo
            try:
                done = WorkDone(name, result=work())
            except Exception as error:  # noqa: BLE001 -- the listener gets it
                done = WorkDone(name, error=error)
            self._listener(done)


@contextmanager
def beside(
    name: str, work: Callable[[threading.Event], None], *, stop_s_max: float
) -> Iterator[None]:
    """Run the work in a thread of its own; at the end of the block, set its event and wait."""
    ending = threading.Event()
    thread = threading.Thread(target=work, args=(ending,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(stop_s_max)
