"""Strict parser for the Prometheus text format: any deviation fails the test."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

Labels = frozenset[tuple[str, str]]

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_HELP = re.compile(rf"# HELP ({_NAME}) (.+)")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram)")
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.+)\}})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
_ESCAPED = re.compile(r"\\(.)")


@dataclass
class Family:
    """One metric with its help text, type and samples."""

    name: str
    help: str
    kind: str = ""
    #: Values by sample name and labels. A histogram's sample names carry a suffix.
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)


class Page(dict[str, Family]):
    """All metrics by name."""

    def value(self, name: str, **labels: str) -> float:
        """Return the only sample that has at least these labels, or 0 if there is none."""
        family = self.get(re.sub(r"_(bucket|sum|count)$", "", name)) or self.get(name)
        if family is None:
            return 0
        found = [
            value
            for (sample, have), value in family.samples.items()
            if sample == name and labels.items() <= dict(have).items()
        ]
        assert len(found) <= 1, f"several samples of {name} have {labels}"
        return found[0] if found else 0

    def sum(self, name: str) -> float:
        """Return the sum of all samples of a metric."""
        return sum(self[name].samples.values()) if name in self else 0


def read_page(text: str) -> Page:
    """Parse and check a page."""
    assert text.endswith("\n")
    page = Page()
    family = Family("", "")
    for line in text[:-1].split("\n"):
        if helps := _HELP.fullmatch(line):
            assert helps[1] not in page, f"{helps[1]} stands at two places"
            family = page[helps[1]] = Family(helps[1], helps[2])
        elif types := _TYPE.fullmatch(line):
            assert (types[1], family.kind) == (family.name, ""), line
            family.kind = types[2]
        else:
            _read_sample(family, line)
    for one in page.values():
        _check(one)
    return page


def _read_sample(family: Family, line: str) -> None:
    sample = _SAMPLE.fullmatch(line)
    assert sample is not None, line
    name, labels, number = sample.groups()
    endings = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    assert name in {family.name + ending for ending in endings}, line
    key = (name, _read_labels(labels or ""))
    assert key not in family.samples, f"twice: {line}"
    family.samples[key] = float(number)


def _read_labels(text: str) -> Labels:
    found = {}
    at = 0
    while at < len(text):
        label = _LABEL.match(text, at)
        assert label is not None, text
        assert label[1] not in found, text
        found[label[1]] = _ESCAPED.sub(lambda one: "\n" if one[1] == "n" else one[1], label[2])
        at = label.end()
    return frozenset(found.items())


def _check(family: Family) -> None:
    assert family.kind, family.name
    assert family.samples, family.name
    if family.kind != "histogram":
        names = {frozenset(dict(labels)) for _, labels in family.samples}
        assert len(names) == 1, f"{family.name} has not always the same labels"
        assert family.kind != "counter" or family.name.endswith("_total"), family.name
        return
    for labels in {_without_bound(labels) for _, labels in family.samples}:
        buckets = sorted(
            (float(dict(have)["le"]), value)
            for (name, have), value in family.samples.items()
            if name.endswith("_bucket") and _without_bound(have) == labels
        )
        counts = [count for _, count in buckets]
        assert counts == sorted(counts), f"{family.name} falls"
        assert buckets[-1] == (math.inf, family.samples[f"{family.name}_count", labels])
        assert (f"{family.name}_sum", labels) in family.samples


def _without_bound(labels: Labels) -> Labels:
    return frozenset(pair for pair in labels if pair[0] != "le")
