"""An audit's report as one page that needs nothing else: no script, no font, no other file.

Names and details come from clients and databases: every one of them is escaped, and the page
forbids scripts besides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape

from escrowmq.pipeline.audit.plots import STATES, ages_plot, along_plots, kinds_plot
from escrowmq.pipeline.audit.report import AuditReport, Case, ComparisonReport, FoundReport
from escrowmq.pipeline.audit.web_page import cell, page_end, page_head, table


def as_html(report: AuditReport) -> str:
    """The whole page."""
    parts = [
        page_head("Audit"),
        *_opening(report),
        "<h2>What was compared</h2>",
        _comparisons(report.comparisons),
        "<h2>Transactions</h2>",
        *_transactions(report),
        "<h2>What was found</h2>",
        *_findings(report),
        page_end(),
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
                cell(one.compared),
                cell(one.which),
                f'<td class="{style}">{result}</td>',
                cell(f"{one.took_ms / 1_000:,.1f} s" if one.took_ms else ""),
                f"<td>{escape(counts)}{notes}</td>",
            )
        )
    return table(("evidence", "which", "result", "took", "what was looked at"), rows)


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
        f"{table(columns, map(_case, found.cases))}{more}</section>"
    )


def _case(case: Case) -> list[str]:
    offset = "" if case.half_offset is None else f"{case.half_offset}"
    return [
        cell(case.broker),
        f'<td class="number">{offset}</td>',
        cell(case.transaction_id),
        cell(case.producer_group),
        f"<td>{_at(case.at_ms)}</td>",
        cell(case.by),
        cell(case.detail),
    ]


def _transactions(report: AuditReport) -> Iterator[str]:
    columns = ("broker", "address", "log offsets", "half offsets", "undecided", "parked")
    rows = [
        (
            cell(one.name),
            cell(one.address),
            cell(f"{one.log_start:,} to {one.log_end:,}"),
            cell(f"{one.half_start:,} to {one.half_end:,}"),
            cell(f"{one.undecided:,}"),
            cell(f"{one.parked:,}"),
        )
        for one in report.brokers
    ]
    yield table(columns, rows)
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


def _at(ms: int | None) -> str:
    if ms is None:
        return ""
    try:
        moment = datetime.fromtimestamp(ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        # A clock somewhere was far off.
        return f"{ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
