"""Generates the reference page of a broker's metrics from their table."""

from __future__ import annotations

from collections.abc import Iterator

from escrowmq.broker.pages.exposition import LINES_MAX, Metric
from escrowmq.broker.pages.metric_table import (
    COMMON_LABELS,
    FINISH,
    FLUSHES,
    MESSAGE_SIZE,
    METRICS,
    NOT_GIVEN,
    RPC_MS,
)
from escrowmq.broker.state.consumer_lag import OFFSETS_MAX
from escrowmq.broker.state.counting import (
    FINISH_BOUNDS,
    FLUSH_BOUNDS,
    OTHERS,
    OUT_MAX,
    RPC_BOUNDS,
    SIZE_BOUNDS,
)

_BOUNDS = {
    MESSAGE_SIZE: SIZE_BOUNDS,
    FINISH: FINISH_BOUNDS,
    RPC_MS: RPC_BOUNDS,
    FLUSHES: FLUSH_BOUNDS,
}

_HEAD = f"""\
# Metrics

Written by `make docs` from the code; edit `broker/pages/metric_table.py` instead.

`/metrics` on `--http-port` of `escrowmq serve` answers in Prometheus's text format, version 0.0.4.
What to watch, and how, is on the page about [watching a broker](../operate/watching.md); the
[pipeline](../operate/pipeline.md) has a page of its own.

- Counters start at 0 with the process. A counter of durable work grows once the work is durable. A
  label appears with its first event; decisions, answers and verdicts appear from the start.
- A metric has at most {LINES_MAX:,} lines. `escrowmq_lines_left_out` counts the lines beyond that.
- Messages that are given out are counted for {OUT_MAX:,} pairs of topic and group; the others share
  `{OTHERS}`.
- Lags are looked up when the page is asked for, over at most {OFFSETS_MAX:,} offsets, for the
  groups and topics of which something was acknowledged. While the page is made, the broker goes on.
"""

_ROCKETMQ = f"""\
## RocketMQ's

Names, labels and bounds are those that a broker of RocketMQ 5 exports, so that dashboards for it
can be used. All have the labels {", ".join(f"`{name}`" for name in COMMON_LABELS)} besides those
named here. Where its exporter adds a unit to the name and its documentation does not, both names
are given.
"""

_NOT_GIVEN = """\
## RocketMQ's that are not here

| Name | Why |
|---|---|
"""


def page() -> str:
    """Return the page of metrics."""
    ours = [one for one in METRICS if one.name.startswith("escrowmq_")]
    theirs = [one for one in METRICS if one.name.startswith("rocketmq_")]
    of_process = [one for one in METRICS if one.name.startswith("process_")]
    return "\n".join(
        [
            _HEAD,
            "## Ours\n",
            *_table(ours),
            "",
            "## The process\n",
            "Under the names that Prometheus's own libraries use.\n",
            *_table(of_process),
            "",
            _ROCKETMQ,
            *_table(theirs),
            "",
            _NOT_GIVEN + "\n".join(f"| `{name}` | {why} |" for name, why in NOT_GIVEN.items()),
            "",
            "## Bounds\n",
            "| Histogram | At most |",
            "|---|---|",
            *(f"| `{one.name}` | {', '.join(map(str, top))} |" for one, top in _BOUNDS.items()),
            "",
        ]
    )


def _table(metrics: list[Metric]) -> Iterator[str]:
    yield "| Name | Type | Labels | What it says |"
    yield "|---|---|---|---|"
    for one in metrics:
        names = f"`{one.name}`" + (f", also `{one.also}`" if one.also else "")
        labels = ", ".join(f"`{label}`" for label in one.labels)
        yield f"| {names} | {one.kind} | {labels} | {one.meaning} |"
