"""Events of long-running processes as JSON: the facts in their lines, taken apart."""

from __future__ import annotations

import re
import time

from escrowmq.cli.tool_shapes import ProcessEventShape

_FACT = re.compile(r"(\w+)=(\S+)")


def process_event(process: str, text: str) -> ProcessEventShape:
    """An event with the words of its line, and each ``name=value`` of them as a fact."""
    facts: dict[str, int | str] = {
        name: int(value) if value.isdecimal() else value.rstrip(";,")
        for name, value in _FACT.findall(text)
    }
    at_ms = time.time_ns() // 1_000_000
    return ProcessEventShape(at_ms=at_ms, process=process, text=text, facts=facts)
