"""The environment that a run takes place in."""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.demo.processes import Processes, Up


@dataclass(frozen=True, kw_only=True)
class Place:
    """A running broker with its pipeline, and their addresses."""

    processes: Processes
    up: Up
    broker: str
    name_server: str
