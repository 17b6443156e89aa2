"""Lines over time, as SVG text, with marks where something happened."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from escrowmq.pipeline.audit.plots import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    round_up,
    scale,
    text_at,
)

_MARK = 4


class Line(NamedTuple):
    """One line: its name, its style, and its points from left to right."""

    name: str
    style: str
    points: Sequence[tuple[float, float]]


class Mark(NamedTuple):
    """Something that happened."""

    at: float
    name: str
    #: At the top instead of the bottom.
    is_high: bool


def lines(given: Sequence[Line], marks: Sequence[Mark] = (), *, unit: str = "") -> str:
    """Lines over each other, each from its first point on, with a scale."""
    points = [point for line in given for point in line.points]
    top = round_up(int(max((value for _, value in points), default=0)))
    end = max([at for at, _ in points] + [mark.at for mark in marks], default=1.0) or 1.0
    room, wide = HEIGHT - TOP - BOTTOM, WIDTH - LEFT - RIGHT
    drawn = [scale(top, room)]
    for line in given:
        path = " ".join(
            f"{LEFT + wide * at / end:.1f},{TOP + room - room * value / top:.1f}"
            for at, value in line.points
        )
        drawn.append(
            f'<g><title>{escape(line.name)}</title><polyline class="line {line.style}"'
            f' points="{path}"/></g>'
        )
    for mark in marks:
        x, y = LEFT + wide * mark.at / end, TOP + _MARK if mark.is_high else TOP + room - _MARK
        drawn.append(
            f"<g><title>{mark.at:,.1f} {escape(unit)}: {escape(mark.name)}</title>"
            f'<circle class="found" cx="{x:.1f}" cy="{y:.1f}" r="{_MARK}"/></g>'
        )
    drawn.append(text_at(LEFT, HEIGHT - 6, "0", "middle"))
    drawn.append(text_at(WIDTH - RIGHT, HEIGHT - 6, f"{end:,.0f} {unit}", "middle"))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" preserveAspectRatio="xMinYMid meet">'
        f"{''.join(drawn)}</svg>"
    )
