"""``escrowmq serve``: a broker and its name server, in this process, until it is told to stop."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from escrowmq.cli.config import load
from escrowmq.cli.log_lines import LogConfig, log_to_stderr
from escrowmq.cli.options import FileOption, SetOption

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
#: Set by `escrowmq up`, for its children.
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
    file: FileOption = None,
    set_: SetOption = None,
    parent: ParentOption = None,
) -> None:
    """Run a broker and its name server until SIGTERM or Ctrl-C.

    It never sends back-checks by itself: they need the pipeline.
    """
    from escrowmq.cli.serving import run
    from escrowmq.pipeline.spark.parent import end_with_parent

    if parent is not None:
        end_with_parent(parent)
    flags = broker_flags(host, name_port, port, http_port, advertise_host, broker_name, cluster)
    flags += log_flags(log_format)
    config = load(file=file, environ=os.environ, flags=[*flags, *(set_ or ())])
    log_to_stderr(logging.WARNING, config.section(LogConfig))
    failure = run(data, config, insecure=insecure, is_alone=parent is None)
    if failure is not None:
        typer.echo(f"escrowmq: the store has failed: {failure!r}; start again to recover", err=True)
        raise typer.Exit(EXIT_FAILED)


def broker_flags(*given: str | int | None) -> list[str]:
    """The settings that the short flags stand for, in their order."""
    return [
        f"broker.{key}={value}"
        for key, value in zip(_SHORT, given, strict=True)
        if value is not None
    ]


def log_flags(log_format: str | None) -> list[str]:
    """The setting that the short flag stands for."""
    return [] if log_format is None else [f"log.format={log_format}"]


_SHORT = ("host", "name_port", "port", "http_port", "advertise_host", "name", "cluster")
