"""The common part of running brokers: processes that print when they are up, and a directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.interop import remoting
from tests.interop.building import CACHE
from tests.interop.child import Child, Usage

BOOT_TIMEOUT_S = 60
#: RocketMQ's default for consumer groups.
RETRIES_MAX = 16


class RunningBroker:
    """A running broker. Use it in a ``with`` block, which removes all its processes and files."""

    def __init__(self, name: str) -> None:
        self._runs = f"{name}-run-"
        self._home: Path | None = None
        #: The processes to end, last one first.
        self.children: list[Child] = []
        #: The process that handles messages.
        self.serving: Child | None = None
        self.name_server = ""
        self.broker_address = ""

    def boot(self, home: Path) -> None:
        """Start all processes, and return when the broker is usable."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        CACHE.mkdir(parents=True, exist_ok=True)
        self._remove_orphans()
        self._home = Path(tempfile.mkdtemp(prefix=f"{self._runs}{os.getpid()}-", dir=CACHE))
        try:
            self.boot(self._home)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        while self.children:
            self.children.pop().kill()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)

    @property
    def home(self) -> Path:
        """The directory of the broker's files while it runs."""
        assert self._home is not None
        return self._home

    def create_topic(self, topic: str, queues: int = 4, kind: str = "NORMAL") -> None:
        remoting.create_topic(self.name_server, topic, queues, kind)

    def create_group(self, group: str) -> None:
        """Create a consumer group; Apache's proxy refuses 5.x clients of an unknown one."""
        for address in remoting.brokers(self.name_server):
            remoting.create_group(address, group, retries_max=RETRIES_MAX)

    def usage(self) -> Usage:
        """Return the usage of only the process that handles messages."""
        assert self.serving is not None
        return self.serving.usage()

    def _remove_orphans(self) -> None:
        """Remove the files of brokers that were killed together with their owner."""
        for place in CACHE.glob(f"{self._runs}*"):
            owner = place.name.removeprefix(self._runs).partition("-")[0]
            if not (Path("/proc") / owner).exists():
                shutil.rmtree(place, ignore_errors=True)


def start_saying(
    word: str,
    name: str,
    command: Sequence[str | Path],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> tuple[Child, str]:
    """Start a process, and wait until it prints a line with this word; return both."""
    child = Child(name, command, log=log, environment=environment, directory=directory)
    timer = threading.Timer(BOOT_TIMEOUT_S, child.kill)
    timer.start()
    said = ""
    try:
        for line in child.stdout:
            said = line.decode()
            if word in said:
                break
    finally:
        timer.cancel()
    if word not in said:
        problem = child.died()
        child.kill()
        raise problem
    threading.Thread(target=_drain, args=(child,), daemon=True).start()
    return child, said


def _drain(child: Child) -> None:
    """Read and drop the output, so that the process never blocks on a full pipe."""
    # Ending the process closes the stream while this loop reads.
    with contextlib.suppress(ValueError, OSError):
        for _ in child.stdout:
            pass
