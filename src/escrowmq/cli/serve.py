"""``escrowmq serve``: run a broker and its name server in this process until it is stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from escrowmq.cli.config import load
from escrowmq.cli.data_directory import refuse_foreign_directory
from escrowmq.cli.log_lines import BROKER_LEVEL, LogConfig, log_to_stderr
from escrowmq.cli.options import FileOption, SetOption
from escrowmq.cli.output import LineOutput, LineOutputOption, note

EXIT_FAILED = 1

DataOption = Annotated[
    Path, typer.Option("--data-dir", metavar="DIR", help="Everything it keeps is in here.")
]
HostOption = Annotated[str | None, typer.Option(help="The address to listen on.")]
NamePortOption = Annotated[int | None, typer.Option(help="For routes; 0 means any.")]
PortOption = Annotated[int | None, typer.Option(help="For messages; 0 means any.")]
HttpPortOption = Annotated[int | None, typer.Option(help="For probes; 0 means any.")]
AdvertiseOption = Annotated[str | None, typer.Option(help="What clients connect to.")]
BrokerNameOption = Annotated[str | None, typer.Option(help="Its name in routes.")]
ClusterOption = Annotated[str | None, typer.Option(help="Its cluster's name in routes.")]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Let other machines in, without access control.")
]
LogFormatOption = Annotated[
    str | None, typer.Option(metavar="text|json", help="A line for each event, or an object.")
]
LogLevelOption = Annotated[
    str | None,
    typer.Option(metavar="debug|info|warning|error", help="The least serious events to log."),
]
#: Set by `escrowmq up` for its child processes.
ParentOption = Annotated[int | None, typer.Option(hidden=True)]


def serve(
    *,
    data: DataOption,
    host: HostOption = None,
    name_port: NamePortOption = None,
    port: PortOption = None,
    http_port: HttpPortOption = None,
    advertise_host: AdvertiseOption = None,
    broker_name: BrokerNameOption = None,
    cluster: ClusterOption = None,
    insecure: InsecureOption = False,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = None,
    output: LineOutputOption = LineOutput.TABLE,
    file: FileOption = None,
    set_: SetOption = None,
    parent: ParentOption = None,
) -> None:
    """Run a broker and its name server until SIGTERM or Ctrl-C.

    It never starts back-checks by itself: they need the pipeline.
    """
    from escrowmq.cli.serving import run
    from escrowmq.pipeline.spark.parent import end_with_parent

    if parent is not None:
        end_with_parent(parent)
    flags = broker_flags(host, name_port, port, http_port, advertise_host, broker_name, cluster)
    flags += log_flags(log_format, log_level)
    config = load(file=file, environ=os.environ, flags=[*flags, *(set_ or ())])
    log_to_stderr(BROKER_LEVEL, config.section(LogConfig))
    refuse_foreign_directory(data)
    failure = run(data, config, insecure=insecure, is_alone=parent is None, output=output)
    if failure is not None:
        note(f"escrowmq: the store has failed: {failure!r}; start again to recover", output)
        raise typer.Exit(EXIT_FAILED)


def broker_flags(*given: str | int | None) -> list[str]:
    """Return the settings for the short flags; ``given`` has the order of ``_SHORT``."""
    return [
        f"broker.{key}={value}"
        for key, value in zip(_SHORT, given, strict=True)
        if value is not None
    ]


def log_flags(log_format: str | None, log_level: str | None) -> list[str]:
    """Return the settings for the log flags."""
    given = {"format": log_format, "level": log_level}
    return [f"log.{key}={value}" for key, value in given.items() if value is not None]


_SHORT = ("host", "name_port", "port", "http_port", "advertise_host", "name", "cluster")
