"""Draws the figures of ``bench.state`` as one SVG: a small bar chart for each kind of figure.

make bench NAME=state > figures.jsonl
python -m bench.state_plot figures.jsonl docs/assets/state-stores.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

KINDS = ("table", "mapped", "sqlite", "sql")
NAMES = {"table": "table", "mapped": "mapped", "sqlite": "SQLite", "sql": "PostgreSQL"}
#: End of the figure's name, and the title of its chart.
CHARTS = (
    ("scan", "Find the due ones, ms"),
    ("start_s", "Start after a clean stop, s"),
    ("_bytes", "Disk, bytes per transaction"),
    ("resident_bytes", "Memory, bytes per transaction"),
)
WIDE, HIGH, BAR = 340, 150, 22


def values_of(lines: list[str]) -> dict[str, dict[str, float]]:
    """Return the values by chart and kind."""
    found: dict[str, dict[str, float]] = {end: {} for end, _ in CHARTS}
    for line in lines:
        if not line.startswith("{"):
            continue
        told = json.loads(line)
        kind, _, rest = told["figure"].partition("_")
        for end, values in found.items():
            is_it = rest == "bytes" if end == "_bytes" else rest.startswith(end)
            if kind in KINDS and is_it:
                values[kind] = told["value"]
    return found


def drawn(lines: list[str]) -> str:
    """Return the SVG."""
    parts = []
    for number, (end, title) in enumerate(CHARTS):
        left, top = number % 2 * WIDE, number // 2 * HIGH
        values = values_of(lines)[end]
        most = max(values.values(), default=1.0) or 1.0
        parts.append(f'<text x="{left + 8}" y="{top + 18}" class="title">{title}</text>')
        for at, kind in enumerate(kind for kind in KINDS if kind in values):
            y = top + 30 + at * (BAR + 5)
            size = max(values[kind], 0.0) / most * (WIDE - 170)
            parts.append(f'<text x="{left + 8}" y="{y + 15}">{NAMES[kind]}</text>')
            parts.append(f'<rect x="{left + 88}" y="{y}" width="{size:.1f}" height="{BAR}"/>')
            text = f"{values[kind]:,.0f}" if values[kind] >= 10 else f"{values[kind]:.2f}"  # noqa: PLR2004
            parts.append(f'<text x="{left + 94 + size:.1f}" y="{y + 15}">{text}</text>')
    style = "text{font:12px sans-serif;fill:#444}.title{font-weight:bold}rect{fill:#4a7ebb}"
    size_of = f'width="{2 * WIDE}" height="{2 * HIGH}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size_of} role="img">'
    label = "<title>State stores compared: scan, start, disk and memory</title>"
    return "\n".join([head, label, f"<style>{style}</style>", *parts, "</svg>", ""])


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(drawn(source.read_text(encoding="utf-8").splitlines()), encoding="utf-8")
