"""Bar charts as SVG text: single, stacked, or grouped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from escrowmq.pipeline.pages.axes import (
    HEIGHT,
    LEFT,
    PLOT_HEIGHT,
    PLOT_WIDTH,
    TOP,
    chart,
    height_at,
    height_axis,
    scale_to,
    text_at,
)

_WIDTH_MAX = 44.0
_VALUES_MAX = 14
"""With more bars than this, there is no room for a value above each bar."""


_LETTER = 7.0
"""The approximate width of a letter."""


class Bar(NamedTuple):
    """One bar: its tooltip, and its parts from bottom to top, each a style and a size."""

    title: str
    parts: Sequence[tuple[str, int]]


class BarGroup(NamedTuple):
    """Bars side by side over one label. A line break in the label starts a second line."""

    label: str
    bars: Sequence[Bar]


def bar_chart(groups: Sequence[BarGroup], *, counts: str, label: str, axis: str = "") -> str:
    """Groups from left to right over a scale of ``counts``; ``label`` is for screen readers."""
    sizes = [sum(size for _, size in bar.parts) for group in groups for bar in group.bars]
    scale = scale_to(max(sizes, default=0))
    pitch = PLOT_WIDTH / max(len(groups), 1)
    has_values = len(sizes) <= _VALUES_MAX
    has_turns = _do_touch([group.label for group in groups], pitch)
    drawn = [*height_axis(scale, counts)]
    for number, group in enumerate(groups):
        wide = min(pitch * 0.8 / max(len(group.bars), 1), _WIDTH_MAX)
        middle = LEFT + (number + 0.5) * pitch
        x = middle - wide * len(group.bars) / 2
        for bar in group.bars:
            drawn.append(_bar(bar, x, wide, scale.end))
            size = sum(part for _, part in bar.parts)
            if has_values:
                y = height_at(scale, size) - 4
                drawn.append(text_at(x + wide / 2, y, f"{size:,}", "middle", "value"))
            x += wide
        first_line = number % 2 if has_turns else 0
        for line, words in enumerate(group.label.split("\n"), first_line):
            y = TOP + PLOT_HEIGHT + 16 + 14 * line
            drawn.append(text_at(middle, y, words, "middle"))
    if axis:
        drawn.append(text_at(LEFT + PLOT_WIDTH / 2, HEIGHT - 6, axis, "middle"))
    return chart(drawn, label)


def _do_touch(labels: Sequence[str], pitch: float) -> bool:
    """Whether neighboring one-line labels would touch, and must alternate between two lines."""
    if any("\n" in label for label in labels):
        return False
    return any(
        (len(one) + len(other)) / 2 * _LETTER > pitch
        for one, other in pairwise(labels)
        if one and other
    )


def _bar(bar: Bar, x: float, wide: float, end: float) -> str:
    y = float(TOP + PLOT_HEIGHT)
    gap = min(wide * 0.06, 2.0)
    shapes = []
    for style, size in bar.parts:
        tall = PLOT_HEIGHT * size / end
        y -= tall
        shapes.append(
            f'<rect class="{style}" x="{x + gap:.1f}" y="{y:.1f}" width="{wide - 2 * gap:.1f}"'
            f' height="{tall:.1f}"/>'
        )
    return f"<g><title>{escape(bar.title)}</title>{''.join(shapes)}</g>"
