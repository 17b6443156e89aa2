"""An audit's report as one page that needs nothing else: no script, no font, no other file.

Names and details come from clients and databases: every one of them is escaped, and the page
forbids scripts besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape

from escrowmq.pipeline.audit_plots import STATES, ages_plot, along_plots, kinds_plot
from escrowmq.pipeline.audit_report import AuditReport, Case, ComparisonReport, FoundReport

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Audit</title>
<style>
:root { color-scheme: light dark; --ink: #1c2128; --soft: #5c6570; --paper: #ffffff;
  --edge: #d9dee4; --row: #f5f7f9; --good: #1a7f4b; --bad: #b3261e; --open: #9a6700;
  --committed: #2f6fbd; --rolled: #c98a2b; --undecided: #8a5cc2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #9aa5b1; --paper: #14181d;
  --edge: #333b44; --row: #1c2229; --good: #5cc98d; --bad: #ff8a80; --open: #e3b341;
  --committed: #6ea8ea; --rolled: #e0ab5c; --undecided: #b491e4; } }
body { margin: 2rem auto; max-width: 68rem; padding: 0 1rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.5rem; } h2 { margin: 2.2rem 0 .5rem; font-size: 1.15rem; }
h3 { margin: 1.4rem 0 .3rem; font-size: 1rem; } p { margin: .3rem 0; }
.soft, caption { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
.open { color: var(--open); } .verdict { font-size: 1.15rem; font-weight: 600; margin-top: .8rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0;
  border-bottom: 1px solid var(--edge); overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td p { margin: 0; } code { font: .92em ui-monospace, monospace; }
section.found { border-left: 3px solid var(--bad); padding-left: 1rem; margin-top: 1.4rem; }
svg { width: 100%; max-width: 52rem; height: auto; } svg text { font-size: 11px;
  fill: var(--soft); } .grid { stroke: var(--edge); }
.committed { fill: var(--committed); } .rolled_back { fill: var(--rolled); }
.undecided { fill: var(--undecided); } .found { fill: var(--bad); }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .35em 0 1em; }
.key svg { width: 100%; height: 100%; }
</style>
</head>
<body>
"""


def as_html(report: AuditReport) -> str:
    """The whole page."""
    parts = [
        _HEAD,
        *_opening(report),
        "<h2>What was compared</h2>",
        _comparisons(report.comparisons),
        "<h2>Transactions</h2>",
        *_transactions(report),
        "<h2>What was found</h2>",
        *_findings(report),
        "</body>\n</html>\n",
    ]
    return "\n".join(parts)


def _opening(report: AuditReport) -> Iterator[str]:
    yield "<h1>Audit</h1>"
    yield (
        f'<p class="soft">Begun {_at(report.started_at_ms)}, done in'
        f" {report.took_ms / 1_000:,.1f} s. {len(report.brokers)} broker(s).</p>"
    )
    failed = sum(one.is_failed for one in report.comparisons)
    if not report.is_clean:
        told = ", ".join(f"{count:,} {kind}" for kind, count in report.totals.items() if count)
        yield f'<p class="verdict bad">Violated: {escape(told)}.</p>'
    elif not failed:
        yield '<p class="verdict good">Nothing was found: what was compared agrees.</p>'
    if failed:
        yield (
            f'<p class="verdict open">{failed} of the comparisons could not be made: this proves'
            " too little.</p>"
        )


def _comparisons(comparisons: Sequence[ComparisonReport]) -> str:
    rows = []
    for one in comparisons:
        style, result = "good", "compared"
        if one.not_compared:
            style, result = ("bad", "FAILED") if one.is_failed else ("soft", "not asked for")
        counts = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in one.counts.items())
        notes = "".join(f"<p>{escape(note)}</p>" for note in (one.not_compared, *one.notes) if note)
        rows.append(
            (
                _cell(one.compared),
                _cell(one.which),
                f'<td class="{style}">{result}</td>',
                _cell(f"{one.took_ms / 1_000:,.1f} s" if one.took_ms else ""),
                f"<td>{escape(counts)}{notes}</td>",
            )
        )
    return _table(("evidence", "which", "result", "took", "what was looked at"), rows)


def _findings(report: AuditReport) -> Iterator[str]:
    if report.is_clean:
        yield "<p>Nothing.</p>"
        return
    yield kinds_plot({kind.value: count for kind, count in report.totals.items()})
    for found in report.findings:
        yield _finding(found)


def _finding(found: FoundReport) -> str:
    columns = ("broker", "half offset", "transaction", "group", "at", "by", "detail")
    rest = found.total - len(found.cases)
    more = f'<p class="soft">and {rest:,} more</p>' if rest > 0 else ""
    return (
        f'<section class="found"><h3>{found.total:,} times <code>{escape(found.name)}</code>'
        f" · {escape(found.kind)} · {escape(found.compared)}</h3>"
        f"<p>{escape(found.about)}.</p><p><b>What to do:</b> {escape(found.remedy)}</p>"
        f"{_table(columns, map(_case, found.cases))}{more}</section>"
    )


def _case(case: Case) -> list[str]:
    offset = "" if case.half_offset is None else f"{case.half_offset}"
    return [
        _cell(case.broker),
        f'<td class="number">{offset}</td>',
        _cell(case.transaction_id),
        _cell(case.producer_group),
        f"<td>{_at(case.at_ms)}</td>",
        _cell(case.by),
        _cell(case.detail),
    ]


def _transactions(report: AuditReport) -> Iterator[str]:
    columns = ("broker", "address", "log offsets", "half offsets", "undecided", "parked")
    rows = [
        (
            _cell(one.name),
            _cell(one.address),
            _cell(f"{one.log_start:,} to {one.log_end:,}"),
            _cell(f"{one.half_start:,} to {one.half_end:,}"),
            _cell(f"{one.undecided:,}"),
            _cell(f"{one.parked:,}"),
        )
        for one in report.brokers
    ]
    yield _table(columns, rows)
    for broker, plot in along_plots(report.along).items():
        yield f"<h3>{escape(broker)}: by state, along the half offsets</h3>{_legend()}{plot}"
    if report.open_ages_ms:
        oldest = len(report.open_ages_ms)
        yield f"<h3>Ages of undecided and parked transactions, the oldest {oldest:,}</h3>"
        yield ages_plot(report.open_ages_ms)


def _legend() -> str:
    keys = (
        f'<span class="key"><svg viewBox="0 0 1 1"><rect class="{state}" width="1"'
        f' height="1"/></svg></span>{name}'
        for state, name in STATES.items()
    )
    return f'<p class="soft">{"".join(keys)}</p>'


def _table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(row)}</tr>\n" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def _cell(text: str | None) -> str:
    return f"<td>{escape(text or '')}</td>"


def _at(ms: int | None) -> str:
    if ms is None:
        return ""
    try:
        moment = datetime.fromtimestamp(ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        # A clock somewhere was far off.
        return f"{ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
