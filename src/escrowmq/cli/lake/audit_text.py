"""The output of ``escrowmq audit`` in all three formats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from escrowmq.cli.asking import at, duration
from escrowmq.cli.options import Output
from escrowmq.cli.output import print_item, show_rows
from escrowmq.cli.preview import escaped
from escrowmq.cli.shapes.audit_shape import shape_of
from escrowmq.pipeline.audit.report import AuditReport, Case, ComparisonReport

if TYPE_CHECKING:
    from escrowmq.pipeline.audit.report import FoundReport

CASES_SHOWN = 3
_CSV = ("what", "name", "which", "result", "count", "detail")


def show(report: AuditReport, output: Output) -> None:
    """Print the report."""
    if output is Output.JSON:
        print_item(shape_of(report), output, str)
    elif output is Output.CSV:
        show_rows(_CSV, [*_csv(report)], output)
    else:
        _show_brokers(report)
        _show_comparisons(report)
        _show_findings(report)
        typer.echo(_last_word(report))


def _csv(report: AuditReport) -> Iterator[tuple[object, ...]]:
    for one in report.comparisons:
        counted = "; ".join([_counts(one), *one.notes]).strip("; ")
        yield "comparison", one.compared, one.which, _result(one), "", one.not_compared or counted
    for found in report.findings:
        for case in found.cases:
            yield "finding", found.name, found.compared, found.kind, found.total, _case(case)


def _show_brokers(report: AuditReport) -> None:
    columns = ("broker", "address", "log", "half messages", "undecided", "parked")
    rows = [
        (
            one.name,
            one.address,
            f"{one.log_start} to {one.log_end}",
            f"{one.half_start} to {one.half_end}",
            one.undecided,
            one.parked,
        )
        for one in report.brokers
    ]
    show_rows(columns, rows, Output.TABLE)
    typer.echo()


def _show_comparisons(report: AuditReport) -> None:
    rows = [
        (one.compared, one.which, _result(one), duration(one.took_ms), _counts(one))
        for one in report.comparisons
    ]
    show_rows(("compared", "which", "result", "took", "examined"), rows, Output.TABLE)
    typer.echo()
    for one in report.comparisons:
        for note in filter(None, (one.not_compared, *one.notes)):
            typer.echo(escaped(f"{one.compared}: {note}"))
    typer.echo()


def _show_findings(report: AuditReport) -> None:
    if report.is_clean:
        return
    rows = [(one.kind, one.name, one.total, one.about) for one in report.findings]
    show_rows(("kind", "finding", "count", "what it is"), rows, Output.TABLE)
    for found in report.findings:
        typer.echo(f"\n{found.name}: {_shown(found)}")
        for case in found.cases[:CASES_SHOWN]:
            typer.echo(f"  {_case(case)}")
        typer.echo(f"  what to do: {found.remedy}")
    typer.echo()


def _shown(found: FoundReport) -> str:
    shown = min(len(found.cases), CASES_SHOWN)
    return f"{found.total}" if shown == found.total else f"{shown} of {found.total}"


def _last_word(report: AuditReport) -> str:
    failed = sum(one.is_failed for one in report.comparisons)
    parts = [f"{count} {kind}" for kind, count in report.totals.items() if count]
    verdict = f"violated: {', '.join(parts)}" if parts else "nothing was found"
    if failed:
        verdict += f"; {failed} of the comparisons could not be made, so this is not a full proof"
    elif not parts:
        verdict += ": what was compared agrees"
    return verdict


def _result(one: ComparisonReport) -> str:
    if one.is_failed:
        return "FAILED"
    return "not asked for" if one.not_compared else "compared"


def _counts(one: ComparisonReport) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in one.counts.items())


def _case(case: Case) -> str:
    facts = {
        "broker": case.broker,
        "half offset": case.half_offset,
        "transaction": case.transaction_id,
        "group": case.producer_group,
        "at": at(case.at_ms),
        "by": case.by,
    }
    known = [f"{name} {value}" for name, value in facts.items() if value is not None]
    return escaped("; ".join(filter(None, (", ".join(known), case.detail))))
