"""Metrics as text: escaped, complete, and within the limit of lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.pages import exposition
from escrowmq.broker.pages.exposition import Exposition, Metric, MetricType
from escrowmq.broker.state.counting import Histogram
from tests.unit.broker.exposition import read_page

if TYPE_CHECKING:
    import pytest

SIZE = Metric(name="a_size", kind=MetricType.HISTOGRAM, meaning="Of each", labels=("topic",))
COUNT = Metric(name="a_total", kind=MetricType.COUNTER, meaning="How\nmany \\", labels=("topic",))


def text(page: Exposition, metric: Metric, *samples: exposition.Sample) -> str:
    return "".join(f"{line}\n" for line in page.lines(metric, samples))


def test_a_label_may_hold_anything() -> None:
    name = 'quote" back\\slash new\nline {brace} , = é'
    told = text(Exposition({"a": {"cluster": name}}), COUNT, ((name,), 3))
    assert told.startswith("# HELP a_total How\\nmany \\\\\n# TYPE a_total counter\n")
    page = read_page(told)
    assert page.value("a_total", topic=name, cluster=name) == 3


def test_a_histogram_adds_up() -> None:
    sizes = Histogram((1, 10))
    for size in (0.5, 1, 2, 100):
        sizes.add(size)
    told = text(Exposition({}), SIZE, (("t",), sizes))
    assert told.splitlines()[2:] == [
        'a_size_bucket{topic="t",le="1"} 2',
        'a_size_bucket{topic="t",le="10"} 3',
        'a_size_bucket{topic="t",le="+Inf"} 4',
        'a_size_sum{topic="t"} 103.5',
        'a_size_count{topic="t"} 4',
    ]


def test_a_metric_without_samples_is_not_there() -> None:
    assert not text(Exposition({}), COUNT)


def test_a_metric_may_have_two_names() -> None:
    metric = Metric(name="a_bytes", kind=MetricType.GAUGE, meaning="Size", also="a")
    page = read_page(text(Exposition({}), metric, ((), 7)))
    assert (page.value("a_bytes"), page.value("a")) == (7, 7)


def test_lines_beyond_the_limit_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "LINES_MAX", 12)
    page = Exposition({})
    counts = read_page(text(page, COUNT, *(((str(number),), 1) for number in range(20))))
    assert counts.sum("a_total") == 12
    # A histogram is left out whole, never in part.
    sizes = read_page(text(page, SIZE, *(((name,), Histogram((1, 10))) for name in "abc")))
    assert len(sizes["a_size"].samples) == 10
    assert page.left_out == {"a_total": 8, "a_size": 5}
