"""``escrowmq doctor``: check the machine, the data directory, the broker and the ledgers.

Each check prints one line with its result and what to do. The checks change nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from escrowmq.cli.asking import DEFAULT_BROKER
from escrowmq.cli.findings import Finding, Level, problem
from escrowmq.cli.options import FileOption, SetOption
from escrowmq.cli.output import Output, OutputOption, print_list
from escrowmq.cli.preview import escaped
from escrowmq.cli.shapes import FindingShape
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
            help=f"Whom to ask; {DEFAULT_BROKER}, if one is there.",
        ),
    ] = None,
    *,
    data: Annotated[
        Path | None, typer.Option("--data-dir", metavar="DIR", help="Look at it, too.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as problems.")] = False,
    output: OutputOption = Output.TABLE,
    file: FileOption = None,
    set_: SetOption = None,
) -> None:
    """Look at everything, and say what to do.

    Exit code 0: no problem was found. 1: a problem, or with --strict a warning.
    """
    findings: list[Finding] = []
    for finding in examine(broker, data, file, set_ or []):
        findings.append(finding)
        if output is Output.TABLE:
            # Print at once: a database that does not answer delays the next line.
            typer.echo(line(finding))
    if output is not Output.TABLE:
        shapes = [FindingShape(**finding._asdict()) for finding in findings]
        print_list(FindingShape, shapes, output, str)
    bad = {Level.PROBLEM, Level.WARNING} if strict else {Level.PROBLEM}
    if any(finding.level in bad for finding in findings):
        raise typer.Exit(EXIT_UNWELL)


def line(finding: Finding) -> str:
    """Format a finding as one line of text."""
    advice = f"; {finding.advice}" if finding.advice else ""
    return escaped(f"{finding.level:11}  {finding.check}: {finding.found}{advice}")


def examine(
    broker: str | None, data: Path | None, file: Path | None, flags: list[str]
) -> Iterator[Finding]:
    """Run all checks, one after the other."""
    from escrowmq.cli import doctor_broker, doctor_data, doctor_ledgers, doctor_machine
    from escrowmq.cli.config import load

    yield from doctor_machine.findings()
    if data is not None:
        yield from doctor_data.findings(data)
    yield from doctor_broker.findings(broker or DEFAULT_BROKER, is_expected=broker is not None)
    try:
        config = load(file=file, environ=os.environ, flags=flags)
    except RequestRefused as error:
        yield problem("config", str(error), "mend the setting that it names")
        return
    for name, ledger in config.ledgers.items():
        yield from doctor_ledgers.findings(name, ledger.url)
