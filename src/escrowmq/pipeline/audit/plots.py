"""The charts of an audit's page: transactions along the half offsets, ages, findings by kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from escrowmq.pipeline.pages.axes import block_sign, legend
from escrowmq.pipeline.pages.bars import Bar, BarGroup, bar_chart

BARS_MAX = 60

#: The states that are counted along the half offsets, with their names and styles.
STATES = {
    "committed": ("committed", "first"),
    "rolled_back": ("rolled back", "second"),
    "undecided": ("undecided", "third"),
}

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
AGES = (
    ("< 1\nmin", _MINUTE_MS),
    ("< 10\nmin", 10 * _MINUTE_MS),
    ("< 1\nhour", _HOUR_MS),
    ("< 6\nhours", 6 * _HOUR_MS),
    ("< 1\nday", 24 * _HOUR_MS),
    ("< 3\ndays", 72 * _HOUR_MS),
    ("older", 2**63),
)


def along_plots(along: Sequence[tuple[str, int, str, int]]) -> dict[str, str]:
    """Transactions by state along the half offsets, by broker."""
    by_broker: dict[str, dict[int, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for broker, first, name, count in along:
        if name in STATES:
            by_broker[broker][first][name] = by_broker[broker][first].get(name, 0) + count
    return {
        broker: bar_chart(
            _along(ranges),
            counts="transactions",
            label="transactions by state along the half offsets",
            axis="half offset",
        )
        for broker, ranges in sorted(by_broker.items())
    }


def states_legend() -> str:
    """The legend of ``along_plots``."""
    return legend((block_sign(style), name) for name, style in STATES.values())


def _along(ranges: Mapping[int, Mapping[str, int]]) -> list[BarGroup]:
    """At most ``BARS_MAX`` bars, each for the same number of ranges."""
    firsts = sorted(ranges)
    each = -(-len(firsts) // BARS_MAX)
    found: list[BarGroup] = []
    for at in range(0, len(firsts), each):
        some = firsts[at : at + each]
        sums = {state: sum(ranges[one].get(state, 0) for one in some) for state in STATES}
        told = ", ".join(f"{count:,} {STATES[state][0]}" for state, count in sums.items())
        is_labeled = not found or at + each >= len(firsts)
        bar = Bar(
            f"from half offset {some[0]:,}: {told}",
            [(STATES[state][1], count) for state, count in sums.items()],
        )
        found.append(BarGroup(f"{some[0]:,}" if is_labeled else "", [bar]))
    return found


def ages_plot(ages_ms: Sequence[int]) -> str:
    """How long transactions have been undecided."""
    counts = dict.fromkeys((name for name, _ in AGES), 0)
    for age_ms in ages_ms:
        counts[next(name for name, below in AGES if age_ms < below)] += 1
    return bar_chart(
        [
            BarGroup(name, [Bar(f"{' '.join(name.split())}: {count:,}", [("third", count)])])
            for name, count in counts.items()
        ],
        counts="transactions",
        label="ages of undecided and parked transactions",
    )


def kinds_plot(totals: Mapping[str, int]) -> str:
    """The number of findings of each kind."""
    return bar_chart(
        [
            BarGroup(kind, [Bar(f"{kind}: {count:,}", [("fault", count)])])
            for kind, count in totals.items()
        ],
        counts="findings",
        label="findings by kind",
    )
