"""The frame of a chart as SVG text: scales, ticks, grid, and the legend beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import NamedTuple

#: Two charts fit beside each other on a page, and one fits on a phone without shrinking its text.
WIDTH, HEIGHT = 460, 254
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 32, 42
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
_TICKS_MAX = 5
_STEPS = (1, 2, 5)


class Scale(NamedTuple):
    """A scale from zero to ``end``, with a tick at every multiple of ``step``."""

    end: float
    step: float

    def ticks(self) -> Iterator[float]:
        """The values that are labeled."""
        count = round(self.end / self.step)
        return (self.step * number for number in range(count + 1))


def scale_to(value: float, *, smallest_step: float = 1.0) -> Scale:
    """The smallest scale with round ticks that has room for a value."""
    power = smallest_step
    while True:
        for one in _STEPS:
            step = power * one
            if step * _TICKS_MAX >= value:
                count = max(-int(-value // step), 1)
                return Scale(step * count, step)
        power *= 10


def chart(parts: Iterable[str], label: str) -> str:
    """An SVG drawing in the size that all charts share."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def height_axis(scale: Scale, title: str) -> Iterator[str]:
    """Horizontal lines across the plot with their values, and the title of the axis."""
    for value in scale.ticks():
        y = height_at(scale, value)
        style = "grid" if value else "axis"
        yield (
            f'<line class="{style}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        yield text_at(LEFT - 7, y + 4, f"{value:,.0f}", "end")
    yield text_at(0, 11, title, "start")


def time_axis(scale: Scale, title: str) -> Iterator[str]:
    """Ticks below the plot with their values, and the title of the axis."""
    bottom = TOP + PLOT_HEIGHT
    for value in scale.ticks():
        x = time_at(scale, value)
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        yield text_at(x, bottom + 18, f"{value:,.0f}", "middle")
    yield text_at(LEFT + PLOT_WIDTH / 2, HEIGHT - 6, title, "middle")


def height_at(scale: Scale, value: float) -> float:
    """The y coordinate of a value, from the top."""
    return TOP + PLOT_HEIGHT * (1 - value / scale.end)


def time_at(scale: Scale, value: float) -> float:
    """The x coordinate of a value, from the left."""
    return LEFT + PLOT_WIDTH * value / scale.end


def text_at(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    """A short text at a position."""
    named = f' class="{style}"' if style else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def figure(title: str, about: str, legend: str, drawing: str) -> str:
    """A chart with its title, one line about it, and its legend."""
    under = f"<span>{escape(about)}</span>" if about else ""
    return f"<figure><figcaption>{escape(title)}{under}</figcaption>{legend}{drawing}</figure>"


def charts(figures: Iterable[str]) -> str:
    """Charts, side by side where there is room."""
    return f'<div class="charts">{"".join(figures)}</div>'


def legend(keys: Iterable[tuple[str, str]]) -> str:
    """The names of the chart's series, each with its symbol as SVG text."""
    items = "".join(
        f'<li><svg viewBox="0 0 22 14" aria-hidden="true">{sign}</svg>{escape(name)}</li>'
        for sign, name in keys
    )
    return f'<ul class="legend">{items}</ul>'


def block_sign(style: str) -> str:
    """The symbol of a bar in a legend."""
    return f'<rect class="{style}" x="4" y="1" width="12" height="12"/>'


def line_sign(style: str) -> str:
    """The symbol of a line in a legend."""
    return f'<line class="line {style}" x1="0" x2="22" y1="7" y2="7"/>'
