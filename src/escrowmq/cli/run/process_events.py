"""JSON events of long-running processes, parsed from the lines that they print."""

from __future__ import annotations

import re
import time

from escrowmq.cli.shapes.tool_shapes import ProcessEventShape

_FACT = re.compile(r"(\w+)=(\S+)")


def process_event(process: str, text: str) -> ProcessEventShape:
    """Make an event from a line; each ``name=value`` in the line becomes a fact."""
    facts: dict[str, int | str] = {
        name: int(value) if value.isdecimal() else value.rstrip(";,")
        for name, value in _FACT.findall(text)
    }
    at_ms = time.time_ns() // 1_000_000
    return ProcessEventShape(at_ms=at_ms, process=process, text=text, facts=facts)
