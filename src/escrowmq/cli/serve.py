"""``escrowmq serve``: a broker and its name server, in this process, until it is told to stop."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from escrowmq.cli.config import load
from escrowmq.cli.config_commands import FileOption, SetOption

EXIT_FAILED = 1

DataOption = Annotated[
    Path, typer.Option("--data-dir", metavar="DIR", help="Everything it keeps is in here.")
]
#: Flag -> the setting that it is short for.
SHORT = {
    "host": "broker.host",
    "name_port": "broker.name_port",
    "port": "broker.port",
    "http_port": "broker.http_port",
    "advertise_host": "broker.advertise_host",
    "broker_name": "broker.name",
    "cluster": "broker.cluster",
}


def serve(
    *,
    data: DataOption,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    name_port: Annotated[int | None, typer.Option(help="For routes; 0 means any.")] = None,
    port: Annotated[int | None, typer.Option(help="For messages; 0 means any.")] = None,
    http_port: Annotated[int | None, typer.Option(help="For probes; 0 means any.")] = None,
    advertise_host: Annotated[str | None, typer.Option(help="What clients connect to.")] = None,
    broker_name: Annotated[str | None, typer.Option(help="Its name in routes.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Its cluster's name in routes.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let other machines in, without access control.")
    ] = False,
    file: FileOption = None,
    set_: SetOption = None,
) -> None:
    """Run a broker and its name server until SIGTERM or Ctrl-C.

    It never sends back-checks by itself: they need the pipeline.
    """
    from escrowmq.cli.serving import run

    given = {
        "host": host,
        "name_port": name_port,
        "port": port,
        "http_port": http_port,
        "advertise_host": advertise_host,
        "broker_name": broker_name,
        "cluster": cluster,
    }
    flags = [f"{SHORT[name]}={value}" for name, value in given.items() if value is not None]
    config = load(file=file, environ=os.environ, flags=[*flags, *(set_ or ())])
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    failure = run(data, config, insecure=insecure)
    if failure is not None:
        typer.echo(f"escrowmq: the store has failed: {failure!r}; start again to recover", err=True)
        raise typer.Exit(EXIT_FAILED)
