"""Our own broker, as a process of its own, where Apache's can be."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.interop import remoting
from tests.interop.building import CACHE
from tests.interop.child import Child, Usage

RUNS = "escrow-run-"
BOOT_TIMEOUT_S = 30
_READY = re.compile(rb"ready name=(\S+) broker=(\S+) ")


class Escrow:
    """Use it in a ``with`` block: at its end the process and its files are gone."""

    def __init__(self, *, settings: Mapping[str, str] | None = None) -> None:
        self._settings = {"broker.port": "0", "broker.name_port": "0", **(settings or {})}
        self._home: Path | None = None
        self._child: Child | None = None
        self.name_server = ""
        self.broker_address = ""

    def __enter__(self) -> Self:
        CACHE.mkdir(parents=True, exist_ok=True)
        remove_orphans()
        self._home = Path(tempfile.mkdtemp(prefix=f"{RUNS}{os.getpid()}-", dir=CACHE))
        try:
            self._start(self._home)
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
        if self._child is not None:
            self._child.kill()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)

    def create_topic(self, topic: str, queues: int = 4) -> None:
        remoting.create_topic(self.name_server, topic, queues)

    def usage(self) -> Usage:
        assert self._child is not None
        return self._child.usage()

    def _start(self, home: Path) -> None:
        flags = [f"--set={key}={value}" for key, value in self._settings.items()]
        self._child = Child(
            "escrowmq",
            [sys.executable, "-m", "escrowmq.cli.main", "serve", "--data-dir", home, *flags],
            log=CACHE / "logs" / f"escrowmq-{home.name}.log",
        )
        timer = threading.Timer(BOOT_TIMEOUT_S, self._child.kill)
        timer.start()
        try:
            for line in self._child.stdout:
                ready = _READY.match(line)
                if ready is not None:
                    self.name_server, self.broker_address = (one.decode() for one in ready.groups())
                    return
        finally:
            timer.cancel()
        raise self._child.died()


def remove_orphans() -> None:
    """The files of brokers whose owner was killed, and they with it."""
    for place in CACHE.glob(f"{RUNS}*"):
        owner = place.name.removeprefix(RUNS).partition("-")[0]
        if not (Path("/proc") / owner).exists():
            shutil.rmtree(place, ignore_errors=True)
