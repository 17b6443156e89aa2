"""Generates the diagram and the table of the page about states from the code."""

from __future__ import annotations

from escrowmq.transaction.rules import DUES
from escrowmq.transaction.states import TRANSITIONS


def mermaid() -> str:
    """Return every transition as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for source, event, target in TRANSITIONS:
        begin = "[*]" if source is None else source.label
        lines.append(f"    {begin} --> {target.label}: {event}")
    return "\n".join(lines)


def dues_table() -> str:
    """Return the time rules, in their order, as a Markdown table."""
    lines = ["| | If | it is due for | rule |", "|---|---|---|---|"]
    for number, (due, holds) in enumerate(DUES, start=1):
        meaning = (holds.__doc__ or "").rstrip(".")
        lines.append(f"| {number} | {meaning} | {due} | `{holds.__name__}` |")
    return "\n".join(lines)
