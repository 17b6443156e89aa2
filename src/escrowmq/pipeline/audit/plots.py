"""The plots of an audit's page, as SVG text: bars, each with what it says when it is pointed at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 720, 180
LEFT, BOTTOM, TOP, RIGHT = 64, 22, 8, 36
BARS_MAX = 60
_TICKS = 4

#: By what is counted along the half offsets: how it is called.  The style is named alike.
STATES = {"committed": "committed", "rolled_back": "rolled back", "undecided": "undecided"}

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
AGES = (
    ("< 1 min", _MINUTE_MS),
    ("< 10 min", 10 * _MINUTE_MS),
    ("< 1 h", _HOUR_MS),
    ("< 6 h", 6 * _HOUR_MS),
    ("< 1 day", 24 * _HOUR_MS),
    ("< 3 days", 72 * _HOUR_MS),
    ("older", 2**63),
)


class Bar(NamedTuple):
    """One bar: its name, and its parts from below, each a style and a height."""

    name: str
    parts: Sequence[tuple[str, int]]
    #: Stands below it; empty where there is no room.
    label: str = ""


def along_plots(along: Sequence[tuple[str, int, str, int]]) -> dict[str, str]:
    """By broker: transactions by state along the half offsets."""
    by_broker: dict[str, dict[int, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for broker, first, name, count in along:
        if name in STATES:
            by_broker[broker][first][name] = by_broker[broker][first].get(name, 0) + count
    return {broker: bars(_along(ranges)) for broker, ranges in sorted(by_broker.items())}


def _along(ranges: Mapping[int, Mapping[str, int]]) -> list[Bar]:
    """As many bars as can be told apart, each for as many ranges."""
    firsts = sorted(ranges)
    each = -(-len(firsts) // BARS_MAX)
    found: list[Bar] = []
    for at in range(0, len(firsts), each):
        some = firsts[at : at + each]
        sums = [(state, sum(ranges[one].get(state, 0) for one in some)) for state in STATES]
        told = ", ".join(f"{count:,} {STATES[state]}" for state, count in sums)
        is_labelled = not found or at + each >= len(firsts)
        label = f"{some[0]:,}" if is_labelled else ""
        found.append(Bar(f"from half offset {some[0]:,}: {told}", sums, label))
    return found


def ages_plot(ages_ms: Sequence[int]) -> str:
    """How long transactions have been undecided."""
    counts = dict.fromkeys((name for name, _ in AGES), 0)
    for age_ms in ages_ms:
        counts[next(name for name, below in AGES if age_ms < below)] += 1
    return bars(
        [Bar(f"{name}: {count:,}", [("undecided", count)], name) for name, count in counts.items()]
    )


def kinds_plot(totals: Mapping[str, int]) -> str:
    """How much was found of each kind."""
    return bars(
        [Bar(f"{kind}: {count:,}", [("found", count)], kind) for kind, count in totals.items()]
    )


def bars(given: Sequence[Bar]) -> str:
    """Bars beside each other, with a scale."""
    top = round_up(max((sum(size for _, size in bar.parts) for bar in given), default=0))
    room = HEIGHT - TOP - BOTTOM
    pitch = (WIDTH - LEFT - RIGHT) / max(len(given), 1)
    drawn = [scale(top, room)]
    for number, bar in enumerate(given):
        # No wider than a finger, however few there are.
        wide = min(pitch * 0.8, 48)
        x = LEFT + number * pitch + (pitch - wide) / 2
        y = float(TOP + room)
        shapes = []
        for style, size in bar.parts:
            tall = room * size / top
            y -= tall
            shapes.append(
                f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}"'
                f' height="{tall:.1f}"/>'
            )
        drawn.append(f"<g><title>{escape(bar.name)}</title>{''.join(shapes)}</g>")
        if bar.label:
            drawn.append(text_at(x + wide / 2, HEIGHT - 6, bar.label, "middle"))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" preserveAspectRatio="xMinYMid meet">'
        f"{''.join(drawn)}</svg>"
    )


def scale(top: int, room: int) -> str:
    """Lines across, with what each stands for."""
    lines = []
    for tick in range(_TICKS + 1):
        y = TOP + room - room * tick / _TICKS
        value = top * tick / _TICKS
        label = f"{value:,.0f}" if value == int(value) else ""
        lines.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        lines.append(text_at(LEFT - 6, y + 4, label, "end"))
    return "".join(lines)


def text_at(x: float, y: float, text: str, anchor: str) -> str:
    """A few words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def round_up(value: int) -> int:
    """To a number that a scale can end with."""
    unit = 1
    while unit * 10 < value:
        unit *= 10
    return next((unit * one for one in (1, 2, 4, 5, 8, 10) if unit * one >= value), 1)
