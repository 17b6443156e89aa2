"""``escrowmq doctor``: check the machine, the data directory, the broker and the ledgers.

Each check prints one line with its result and what to do. The checks change nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from escrowmq.cli.doctor.findings import DoctorFinding, Severity, problem
from escrowmq.cli.options import DEFAULT_BROKER, FileOption, Output, OutputOption, SetOption
from escrowmq.cli.output import print_list
from escrowmq.cli.preview import escaped
from escrowmq.cli.shapes.broker_shapes import FindingShape
from escrowmq.model.errors import RequestRefused

EXIT_UNWELL = 1


def doctor(
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker",
            "-b",
            metavar="HOST:PORT",
            envvar="ESCROWMQ_BROKER",
            help=f"The broker to check; the default is {DEFAULT_BROKER}, if it runs.",
        ),
    ] = None,
    *,
    data: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Check this data directory, too."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Count warnings as problems.")] = False,
    output: OutputOption = Output.TABLE,
    file: FileOption = None,
    set_: SetOption = None,
) -> None:
    """Check machine, data, broker and ledgers, and give advice.

    Exit code 0: no problem was found. 1: a problem, or with --strict a warning.
    """
    findings: list[DoctorFinding] = []
    for finding in examine(broker, data, file, set_ or []):
        findings.append(finding)
        if output is Output.TABLE:
            # Print at once: a database that does not answer delays the next line.
            typer.echo(line(finding))
    if output is not Output.TABLE:
        shapes = [FindingShape(**finding._asdict()) for finding in findings]
        print_list(FindingShape, shapes, output, str)
    bad = {Severity.PROBLEM, Severity.WARNING} if strict else {Severity.PROBLEM}
    if any(finding.level in bad for finding in findings):
        raise typer.Exit(EXIT_UNWELL)


def line(finding: DoctorFinding) -> str:
    """Format a finding as one line of text."""
    advice = f"; {finding.advice}" if finding.advice else ""
    return escaped(f"{finding.level:11}  {finding.check}: {finding.found}{advice}")


def examine(
    broker: str | None, data: Path | None, file: Path | None, flags: list[str]
) -> Iterator[DoctorFinding]:
    """Run all checks, one after the other."""
    from escrowmq.cli.config import load
    from escrowmq.cli.doctor import broker as doctor_broker
    from escrowmq.cli.doctor import data as doctor_data
    from escrowmq.cli.doctor import ledgers, machine

    yield from machine.findings()
    if data is not None:
        yield from doctor_data.findings(data)
    yield from doctor_broker.findings(broker or DEFAULT_BROKER, is_expected=broker is not None)
    try:
        config = load(file=file, environ=os.environ, flags=flags)
    except RequestRefused as error:
        yield problem("config", str(error), "correct the setting that the error names")
        return
    for name, ledger in config.ledgers.items():
        yield from ledgers.findings(name, ledger.url)
