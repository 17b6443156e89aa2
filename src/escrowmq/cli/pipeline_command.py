"""``escrowmq pipeline``: settle and archive for brokers that run in other processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from escrowmq.cli.config import load
from escrowmq.cli.data_directory import refuse_foreign_directory
from escrowmq.cli.log_lines import PIPELINE_LEVEL, LogConfig, log_to_stderr
from escrowmq.cli.options import FileOption, SetOption
from escrowmq.cli.output import LineOutput, LineOutputOption, print_json_line
from escrowmq.cli.process_events import process_event
from escrowmq.cli.serve import LogFormatOption, LogLevelOption, ParentOption, log_flags
from escrowmq.pipeline.config import PipelineConfig, places_of
from escrowmq.pipeline.spark.version import require_pipeline_spark


def pipeline(
    *,
    master: Annotated[str | None, typer.Option(help="Where Spark runs.")] = None,
    brokers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,...", help="The brokers to look after.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="For lake and checkpoints, if it is here."),
    ] = None,
    http_port: Annotated[int | None, typer.Option(help="For metrics; 0 means any.")] = None,
    once: Annotated[bool, typer.Option("--once", help="One round, one archive run.")] = False,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = None,
    output: LineOutputOption = LineOutput.TABLE,
    file: FileOption = None,
    set_: SetOption = None,
    parent: ParentOption = None,
) -> None:
    """Settle what is undecided, and archive topics, until SIGTERM or Ctrl-C."""
    from escrowmq.pipeline.spark.parent import end_with_parent

    if parent is not None:
        end_with_parent(parent)
    given = {"master": master, "brokers": brokers, "http_port": http_port}
    flags = [f"pipeline.{key}={value}" for key, value in given.items() if value is not None]
    flags += log_flags(log_format, log_level)
    config = load(file=file, environ=os.environ, flags=[*(set_ or ()), *flags])
    settings = config.section(PipelineConfig)
    require_pipeline_spark()
    if data is not None:
        refuse_foreign_directory(data)
    places = places_of(settings, data)
    log_to_stderr(PIPELINE_LEVEL, config.section(LogConfig))

    from escrowmq.pipeline.service import running

    def say(line: str) -> None:
        if output is LineOutput.JSON:
            print_json_line(process_event("pipeline", line))
        else:
            typer.echo(line)

    if once:
        running.run_once(settings, places, config.ledgers, say)
    else:
        raise typer.Exit(running.run(settings, places, config.ledgers, say))
