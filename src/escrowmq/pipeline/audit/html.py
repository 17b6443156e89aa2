"""An audit's report as one HTML file.

Names and details come from clients and databases. All of them are escaped, and the page also
forbids scripts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from escrowmq.pipeline.audit.plots import ages_plot, along_plots, kinds_plot, states_legend
from escrowmq.pipeline.audit.report import AuditReport, Case, ComparisonReport, FoundReport
from escrowmq.pipeline.pages.axes import charts, figure
from escrowmq.pipeline.pages.origin import moment
from escrowmq.pipeline.pages.page import (
    Card,
    Cell,
    TableColumn,
    cards,
    page_end,
    page_head,
    page_header,
    table,
)

_LEAD = (
    "The audit works out from the half and op records of each broker's log what became of every"
    " transaction, and compares everything else with that."
)


def as_html(report: AuditReport) -> str:
    """The whole page."""
    parts = [
        page_head("EscrowMQ audit"),
        page_header(
            "Audit",
            _LEAD,
            report.origin,
            [
                ("started", moment(report.started_at_ms)),
                ("duration", f"{report.took_ms / 1_000:,.1f} s"),
            ],
        ),
        cards(_verdict(report)),
        *_findings(report),
        "<h2>What was compared</h2>",
        _comparisons(report.comparisons),
        "<h2>Transactions</h2>",
        *_transactions(report),
        page_end(),
    ]
    return "\n".join(parts)


def _verdict(report: AuditReport) -> Iterator[Card]:
    done = [one for one in report.comparisons if not one.not_compared]
    failed = sum(one.is_failed for one in report.comparisons)
    if not report.is_clean:
        told = ", ".join(f"{count:,} {kind}" for kind, count in report.totals.items() if count)
        total = sum(report.totals.values())
        unit = "finding" if total == 1 else "findings"
        yield Card("Result", f"{total:,}", unit, [f"Violated: {told}."], "bad")
    elif failed:
        why = "Nothing was found, but not everything was compared."
        yield Card("Result", "No proof", "", [why], "open")
    else:
        proof = "Nothing was found: what was compared agrees."
        yield Card("Result", "0", "findings", [proof], "good")
    yield _compared_card(len(done), failed)
    undecided, parked = (
        sum(one.undecided for one in report.brokers),
        sum(one.parked for one in report.brokers),
    )
    brokers = f"{len(report.brokers)} broker{'' if len(report.brokers) == 1 else 's'}"
    yield Card(
        "Transactions without a decision",
        f"{undecided + parked:,}",
        f"on {brokers}",
        [f"{undecided:,} undecided, {parked:,} parked when the audit read the log."],
    )


def _compared_card(done: int, failed: int) -> Card:
    if failed:
        lacking = (
            f"{failed} of the comparisons could not be made: this is not a full proof."
            " The table below says why."
        )
        return Card("Comparisons", f"{done}", f"made, {failed} failed", [lacking], "open")
    return Card("Comparisons", f"{done}", "made", ["Every requested comparison was made."])


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
                one.compared,
                one.which,
                Cell(result, style),
                f"{one.took_ms / 1_000:,.1f} s" if one.took_ms else "",
                Cell(f"<div>{escape(counts)}{notes}</div>"),
            )
        )
    columns = (
        TableColumn("evidence", "short"),
        TableColumn("which", "name"),
        TableColumn("result", "short"),
        TableColumn("duration", "number"),
        TableColumn("what was looked at", "long"),
    )
    return table(columns, rows)


def _findings(report: AuditReport) -> Iterator[str]:
    if report.is_clean:
        return
    yield "<h2>What was found</h2>"
    totals = {kind.value: count for kind, count in report.totals.items()}
    yield charts([figure("Findings by kind", "", "", kinds_plot(totals))])
    for found in report.findings:
        yield _finding(found)


_CASE_COLUMNS = (
    TableColumn("broker", "short"),
    TableColumn("half offset", "number"),
    TableColumn("transaction", "id"),
    TableColumn("group", "name"),
    TableColumn("at", "name"),
    TableColumn("by", "name"),
    TableColumn("detail", "long"),
)


def _finding(found: FoundReport) -> str:
    rest = found.total - len(found.cases)
    more = f'<p class="soft">and {rest:,} more</p>' if rest > 0 else ""
    # An empty column would only take room from the others.
    rows = [_case(case) for case in found.cases]
    filled = [number for number in range(len(_CASE_COLUMNS)) if any(row[number] for row in rows)]
    columns = [_CASE_COLUMNS[number] for number in filled]
    cases = table(columns, ([row[number] for number in filled] for row in rows)) if rows else ""
    about = found.about[:1].upper() + found.about[1:]
    times = "1 time" if found.total == 1 else f"{found.total:,} times"
    return (
        f'<section class="finding"><h3>{times} <code>{escape(found.name)}</code>'
        f' <span class="soft">{escape(found.kind)}, {escape(found.compared)}</span></h3>'
        f"<p>{escape(about)}.</p><p><b>What to do:</b> {escape(_ended(found.remedy))}</p>"
        f"{cases}{more}</section>"
    )


def _ended(text: str) -> str:
    """A sentence with its final period."""
    return text if text.endswith(("?", ".")) else f"{text}."


def _case(case: Case) -> list[str]:
    return [
        case.broker or "",
        "" if case.half_offset is None else f"{case.half_offset:,}",
        case.transaction_id or "",
        case.producer_group or "",
        moment(case.at_ms),
        case.by or "",
        case.detail,
    ]


_BROKER_COLUMNS = (
    TableColumn("broker", "name"),
    TableColumn("address", "short"),
    TableColumn("log offsets", "number"),
    TableColumn("half offsets", "number"),
    TableColumn("undecided", "number"),
    TableColumn("parked", "number"),
)


def _transactions(report: AuditReport) -> Iterator[str]:
    yield table(
        _BROKER_COLUMNS,
        [
            (
                one.name,
                one.address,
                f"{one.log_start:,} to {one.log_end:,}",
                f"{one.half_start:,} to {one.half_end:,}",
                f"{one.undecided:,}",
                f"{one.parked:,}",
            )
            for one in report.brokers
        ],
    )
    drawn = [
        figure(f"Transactions of {broker}", "by state, in the order of the log", keys, plot)
        for keys in (states_legend(),)
        for broker, plot in along_plots(report.along).items()
    ]
    if report.open_ages_ms:
        about = f"undecided and parked ones, the oldest {len(report.open_ages_ms):,}"
        drawn.append(figure("Time without a decision", about, "", ages_plot(report.open_ages_ms)))
    if drawn:
        yield charts(drawn)
