"""Our broker as a separate process, and the kernel's figures about it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.interop.child import Usage, usage

STOP_TIMEOUT_S = 60
ADDRESS = re.compile(r"name=(\S+) broker=(\S+)(?: grpc=(\S+))? ")


@dataclass(frozen=True, slots=True)
class Served:
    """A running broker."""

    process: subprocess.Popen[str]
    address: str
    #: The name server's address, for producers and consumers.
    name_address: str
    log: Path
    #: The address for gRPC clients; empty if there is no port for them.
    grpc_address: str = ""

    def usage(self) -> Usage:
        """Return the memory and CPU time used so far."""
        return usage(self.process.pid)

    def files(self) -> int:
        """Return the count of open files that are not sockets."""
        return sum(not link.startswith("socket:") for link in self._links())

    def sockets(self) -> int:
        """Return the count of open sockets."""
        return sum(link.startswith("socket:") for link in self._links())

    def _links(self) -> Iterator[str]:
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # Closed meanwhile
                yield str(entry.readlink())

    def lines(self) -> list[str]:
        """Return the lines that the broker has logged."""
        return self.log.read_text(encoding="utf-8").splitlines()

    def stop(self) -> int:
        """Ask the broker to stop; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)


@contextmanager
def served(directory: Path, *settings: str, grpc_port: int = -1) -> Iterator[Served]:
    """Start a broker with its data and its log below the directory; a port of 0 means any."""
    log = directory / "log"
    flags = [flag for setting in settings for flag in ("--set", setting)]
    command = [sys.executable, "-m", "escrowmq.cli.main", "serve", "--port", "0"]
    command += [
        "--name-port",
        "0",
        "--grpc-port",
        str(grpc_port),
        "--data-dir",
        str(directory / "data"),
        *flags,
    ]
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            found = ADDRESS.search(process.stdout.readline())
            assert found is not None, log.read_text(encoding="utf-8")
            yield Served(process, found[2], found[1], log, found[3] or "")
        finally:
            process.kill()
