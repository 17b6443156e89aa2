"""``escrowmq pipeline``: settle and archive for brokers that run in other processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from escrowmq.cli.data.data_directory import refuse_foreign_directory
from escrowmq.cli.options import LineOutput, MasterOption, grouped, settings_of
from escrowmq.cli.output import print_json_line
from escrowmq.cli.run.process_events import process_event
from escrowmq.cli.run.process_options import ProcessOptions
from escrowmq.model.log_lines import PIPELINE_LEVEL, LogConfig, log_to_stderr
from escrowmq.pipeline.config import PipelineConfig, places_of
from escrowmq.pipeline.spark.version import require_pipeline_spark


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions(ProcessOptions):
    """Options of ``escrowmq pipeline``."""

    master: MasterOption = None
    brokers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,...", help="The brokers to serve.")
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", metavar="DIR", help="Local directory for the lake and checkpoints."
        ),
    ] = None
    http_port: Annotated[int | None, typer.Option(help="Port for metrics; 0 means any.")] = None
    once: Annotated[
        bool, typer.Option("--once", help="Run one settling round and one archive run, then end.")
    ] = False

    @property
    def flags(self) -> list[str]:
        """The settings of ``--set``, then those of the short options."""
        short = settings_of(
            "pipeline", master=self.master, brokers=self.brokers, http_port=self.http_port
        )
        return [*(self.set_ or ()), *short, *self.log_flags]


@grouped
def pipeline(given: PipelineOptions) -> None:
    """Settle transactions and archive topics until SIGTERM or Ctrl-C."""
    given.end_with_parent()
    config = given.load(given.flags)
    settings = config.section(PipelineConfig)
    require_pipeline_spark()
    if given.data is not None:
        refuse_foreign_directory(given.data)
    places = places_of(settings, given.data)
    log_to_stderr(PIPELINE_LEVEL, config.section(LogConfig))

    from escrowmq.pipeline.service import running

    def say(line: str) -> None:
        if given.output is LineOutput.JSON:
            print_json_line(process_event("pipeline", line))
        else:
            typer.echo(line)

    if given.once:
        running.run_once(settings, places, config.ledgers, say)
    else:
        raise typer.Exit(running.run(settings, places, config.ledgers, say))
