"""Line charts over time as SVG text, with marks where something happened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from escrowmq.pipeline.pages.axes import (
    PLOT_HEIGHT,
    TOP,
    Scale,
    chart,
    height_at,
    height_axis,
    legend,
    line_sign,
    scale_to,
    time_at,
    time_axis,
)

_MARK = 5.0


class Line(NamedTuple):
    """One line: its name, its style, and its points (seconds, value) from left to right."""

    name: str
    style: str
    points: Sequence[tuple[float, float]]


class TimeMark(NamedTuple):
    """An event on the time axis."""

    at_s: float
    title: str
    #: Draw a square at the top of the plot instead of a circle at its bottom.
    is_high: bool


class Scales(NamedTuple):
    """Both scales of a chart. Charts that are compared share them."""

    time: Scale
    height: Scale


def common_scales(charts: Sequence[tuple[Sequence[Line], Sequence[TimeMark]]]) -> Scales:
    """Scales that have room for all of the charts."""
    points = [point for lines, _ in charts for line in lines for point in line.points]
    times = [at_s for at_s, _ in points] + [mark.at_s for _, marks in charts for mark in marks]
    return Scales(
        time=scale_to(max(times, default=0.0)),
        height=scale_to(max((value for _, value in points), default=0.0)),
    )


def line_chart(
    lines: Sequence[Line], marks: Sequence[TimeMark], scales: Scales, *, counts: str, label: str
) -> str:
    """Lines over seconds, with marks at the top and the bottom."""
    drawn = [*height_axis(scales.height, counts), *time_axis(scales.time, "seconds")]
    for line in lines:
        path = " ".join(
            f"{time_at(scales.time, at_s):.1f},{height_at(scales.height, value):.1f}"
            for at_s, value in line.points
        )
        drawn.append(
            f'<g><title>{escape(line.name)}</title><polyline class="line {line.style}"'
            f' points="{path}"/></g>'
        )
    drawn += [*_marks(marks, scales)]
    return chart(drawn, label)


def _marks(marks: Sequence[TimeMark], scales: Scales) -> Iterator[str]:
    for mark in marks:
        x = time_at(scales.time, mark.at_s)
        y = TOP if mark.is_high else TOP + PLOT_HEIGHT
        title = f"{mark.at_s:,.1f} s: {mark.title}"
        yield f"<g><title>{escape(title)}</title>{_sign(x, y, is_high=mark.is_high)}</g>"


def _sign(x: float, y: float, *, is_high: bool) -> str:
    if is_high:
        side = 2 * _MARK - 1
        return (
            f'<rect class="fault" x="{x - side / 2:.1f}" y="{y - side / 2:.1f}"'
            f' width="{side:.1f}" height="{side:.1f}"/>'
        )
    return f'<circle class="fault" cx="{x:.1f}" cy="{y:.1f}" r="{_MARK}"/>'


def lines_legend(lines: Sequence[Line], *, low_marks: str, high_marks: str) -> str:
    """The names of the lines and of both kinds of marks."""
    keys = [(line_sign(line.style), line.name) for line in lines]
    keys += [
        (_sign(11, 7, is_high=False), low_marks),
        (_sign(11, 7, is_high=True), high_marks),
    ]
    return legend(keys)
