"""Our broker as users run it: a process that tests can stop, kill, and start again."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.interop.building import CACHE
from tests.interop.child import Child
from tests.interop.errors import Diverged
from tests.interop.running import RunningBroker, start_saying
from tests.interop.scenario import CHECK_AFTER_MS, CHECK_INTERVAL_MS, CHECKS_MAX, DELAY_LEVELS

READY = re.compile(r"^ready name=(\S+) broker=(\S+) grpc=(\S+) ")


class Escrow(RunningBroker):
    """``escrowmq serve``, which checks undecided transactions by itself."""

    def __init__(self, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__("escrow")
        self._settings = dict(settings or {})
        #: The host and port for 5.x clients.
        self.grpc_address = ""

    def boot(self, home: Path) -> None:
        ports = {
            "name-port": port(self.name_server),
            "port": port(self.broker_address),
            "grpc-port": port(self.grpc_address),
        }
        self.serving, ready = start_saying(
            "ready",
            "escrowmq",
            [
                sys.executable,
                "-m",
                "escrowmq.cli.main",
                "serve",
                f"--data-dir={home / 'data'}",
                *(f"--{name}={value}" for name, value in ports.items()),
                *(f"--set={key}={value}" for key, value in self._settings.items()),
            ],
            log=CACHE / "logs" / f"{home.name}.log",
        )
        self.children.append(self.serving)
        found = READY.match(ready)
        if found is None:
            raise Diverged(f"serve said {ready!r}")
        self.name_server, self.broker_address, self.grpc_address = found.groups()

    def stop(self) -> None:
        """Stop the broker with SIGTERM, as an operator does; it must exit with 0."""
        status = self._end().stop()
        if status:
            raise Diverged(f"serve ended with {status}")

    def kill(self) -> None:
        """Kill the broker, as a crash of the machine would."""
        self._end().kill()

    def start_again(self) -> None:
        """Start again on the same data and the same ports."""
        self.boot(self.home)

    def _end(self) -> Child:
        serving, self.serving = self.serving, None
        assert serving is not None, "it does not run"
        self.children.remove(serving)
        return serving


def quick_escrow(settings: Mapping[str, str] | None = None) -> Escrow:
    """Return a broker with short check times and delays."""
    return Escrow(
        settings={
            **(settings or {}),
            "transaction.check_after_ms": str(CHECK_AFTER_MS),
            "transaction.check_interval_ms": str(CHECK_INTERVAL_MS),
            "transaction.checks_max": str(CHECKS_MAX),
            "topics.delay_levels": DELAY_LEVELS,
        }
    )


def port(address: str) -> str:
    """Return the port of an address, or "0" (any port) for an empty one."""
    return address.rpartition(":")[2] or "0"
