"""Generates the reference page of RocketMQ's settings from the map to ours."""

from __future__ import annotations

from collections.abc import Iterator

from escrowmq.cli.config import load
from escrowmq.cli.rocketmq.left_out import LEFT_OUT
from escrowmq.cli.rocketmq.names import SETTING_NAMES

PAGE = "rocketmq-settings.md"

_HEAD = """\
# RocketMQ's settings

Written by `make docs` from the code; edit `cli/rocketmq/names.py` and `cli/rocketmq/left_out.py`
instead.

This page lists the keys of a RocketMQ broker's file, of versions 4.0 to 5.5, and what replaces them
here. `escrowmq config import broker.conf` converts such a file
([example](../guide/from-rocketmq.md#settings)). A key that the file does not have gets our default,
so compare the defaults where they differ. The guide explains the [times of
back-checks](../guide/from-rocketmq.md#times-of-back-checks).

## Keys with a setting here
"""
_LEFT_OUT = """\
## Keys without a setting here

A star stands for any characters.
"""


def page() -> str:
    """Return the page of RocketMQ's settings."""
    return "\n".join([_HEAD, *_mapped(), "", _LEFT_OUT, *_left_out(), ""])


def _mapped() -> Iterator[str]:
    defaults = {setting.name: setting.value for setting in load(environ={}).settings}
    yield "| `broker.conf` | Its default | Here | Our default | Value | Note |"
    yield "|---|---|---|---|---|---|"
    for one in SETTING_NAMES:
        ours = str(defaults[one.ours])
        ours = ours.lower() if isinstance(defaults[one.ours], bool) else ours
        cells = [
            f"`{one.theirs}`",
            one.default,
            f"`{one.ours}`",
            ours or "empty",
            one.value.rule or "the same",
            one.note,
        ]
        yield f"| {' | '.join(cells)} |".replace("  |", " |")


def _left_out() -> Iterator[str]:
    yield "| `broker.conf` | Why |"
    yield "|---|---|"
    for row in LEFT_OUT:
        names = ", ".join(f"`{name}`" for name in row.names.split())
        yield f"| {names} | {row.reason} |"
