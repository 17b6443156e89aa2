"""Metrics in Prometheus's text format, version 0.0.4.

A metric is declared once, with its labels; a sample gives a value for each label, in their order.
The number of lines per metric is limited, and the exposition counts the lines it leaves out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import Protocol

import msgspec

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LINES_MAX = 10_000
"""Lines of one metric; a scrape leaves out further topics, groups or clients."""

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class MetricType(StrEnum):
    """Type of a metric in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """Declaration of one metric."""

    name: str
    kind: MetricType
    meaning: str
    labels: tuple[str, ...] = ()
    #: A second name under which the same samples appear.
    also: str = ""


class Buckets(Protocol):
    """The value of a histogram."""

    @property
    def bounds(self) -> Iterable[float]:
        """Upper bounds in ascending order."""
        ...

    @property
    def counts(self) -> Iterable[int]:
        """Number of values in each bucket, and then of those above the last bound."""
        ...

    @property
    def total(self) -> float:
        """Sum of all values."""
        ...


Sample = tuple[tuple[str, ...], "float | Buckets"]
"""Label values, and the sample's value."""


class Exposition:
    """Builds one page."""

    def __init__(self, common: Mapping[str, Mapping[str, str]]) -> None:
        #: Labels that all metrics share, by the first word of the metric's name.
        self._common = {
            word: ",".join(
                f'{name}="{_escaped(value)}"'.replace("%", "%%") for name, value in labels.items()
            )
            for word, labels in common.items()
        }
        self._escaped: dict[str, str] = {}
        #: Lines left out because of the limit, by metric.
        self.left_out: Counter[str] = Counter()

    def lines(self, metric: Metric, samples: Iterable[Sample]) -> Iterator[str]:
        """Yield the lines of one metric; without samples there are none."""
        made: list[str] = []
        for line in self._limited(metric, samples):
            if not made:
                yield from _head(metric.name, metric)
            made.append(line)
            yield metric.name + line
        if made and metric.also:
            yield from _head(metric.also, metric)
            yield from (metric.also + line for line in made)

    def _limited(self, metric: Metric, samples: Iterable[Sample]) -> Iterator[str]:
        left = LINES_MAX
        common = self._common.get(metric.name.partition("_")[0], "")
        names = [f'{name}="%s"' for name in metric.labels]
        pattern = ",".join(filter(None, (common, *names)))
        for values, value in samples:
            inner = pattern % tuple(map(self._escape, values))
            lines = (
                [f"{{{inner}}} {_number(value)}" if inner else f" {_number(value)}"]
                if isinstance(value, int | float)
                else _bucket_lines(value, inner)
            )
            # Keep all lines of a histogram, or none.
            left -= len(lines)
            if left < 0:
                self.left_out[metric.name] += len(lines)
            else:
                yield from lines

    def _escape(self, text: str) -> str:
        """Escape a label value; cached, because a few names appear on thousands of lines."""
        known = self._escaped.get(text)
        if known is None:
            known = self._escaped[text] = _escaped(text)
        return known


def _head(name: str, metric: Metric) -> tuple[str, str]:
    return f"# HELP {name} {_help(metric.meaning)}", f"# TYPE {name} {metric.kind}"


def _bucket_lines(value: Buckets, inner: str) -> list[str]:
    start = f'_bucket{{{inner},le="' if inner else '_bucket{le="'
    labels = f"{{{inner}}}" if inner else ""
    sums = list(accumulate(value.counts))
    bounds = (*map(_number, value.bounds), "+Inf")
    lines = [f'{start}{bound}"}} {count}' for bound, count in zip(bounds, sums, strict=True)]
    lines.append(f"_sum{labels} {_number(value.total)}")
    lines.append(f"_count{labels} {sums[-1]}")
    return lines


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, int) else repr(value)


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)


def _help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
