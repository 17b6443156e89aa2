"""Where a run takes place."""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.demo.processes import Processes, Up


@dataclass(frozen=True, kw_only=True)
class Place:
    """A broker with its pipeline, and where they are."""

    processes: Processes
    up: Up
    broker: str
    name_server: str
