"""Options of the commands that run until a signal: ``serve``, ``up`` and ``pipeline``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from escrowmq.broker.access.serving import TOKEN_FILE
from escrowmq.broker.config import AccessConfig, TlsConfig
from escrowmq.broker.net.tls import CERT, FOLDER
from escrowmq.cli.config import Config, load
from escrowmq.cli.options import FileOption, LineOutput, LineOutputOption, SetOption, settings_of
from escrowmq.model.credentials import ENV_ACCESS_KEY, ENV_FILE
from escrowmq.model.tls import SWITCH, VARIABLES

#: Options with the name of a setting in section ``[broker]``.
_OF_BROKER = ("host", "name_port", "port", "grpc_port", "http_port", "advertise_host", "cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """Options of every command that runs until a signal."""

    log_format: Annotated[
        str | None,
        typer.Option(metavar="text|json", help="Log each event as a line, or as a JSON object."),
    ] = None
    log_level: Annotated[
        str | None,
        typer.Option(metavar="debug|info|warning|error", help="Lowest level of logged events."),
    ] = None
    output: LineOutputOption = LineOutput.TABLE
    file: FileOption = None
    set_: SetOption = None
    #: Process id of the parent; `escrowmq up` passes it to its child processes.
    parent: Annotated[int | None, typer.Option(hidden=True)] = None

    @property
    def log_flags(self) -> list[str]:
        """The settings of the log options."""
        return settings_of("log", format=self.log_format, level=self.log_level)

    def load(self, flags: Sequence[str]) -> Config:
        """Read the config; a later flag replaces an earlier one."""
        return load(file=self.file, environ=os.environ, flags=flags)

    def end_with_parent(self) -> None:
        """End this process when the parent that started it ends."""
        if self.parent is not None:
            from escrowmq.pipeline.spark.parent import end_with_parent

            end_with_parent(self.parent)


def trust_served_certificate(config: TlsConfig, data: Path) -> None:
    """Let the processes that serve a broker, such as its backups, connect to it.

    Where TLS is required, they trust its certificate, unless the environment says otherwise.
    """
    is_said = any(os.environ.get(name) for name in (SWITCH, *VARIABLES.values()))
    if config.mode == "required" and not is_said:
        found = config.cert_file or data / FOLDER / CERT
        os.environ[VARIABLES["ca_file"]] = str(Path(found).absolute())


def use_local_admin(config: AccessConfig, data: Path) -> None:
    """Let the processes that serve a broker sign as its local admin.

    Where access control is on, they read the token of the data directory, unless the environment
    has other credentials.
    """
    is_said = any(os.environ.get(name) for name in (ENV_ACCESS_KEY, ENV_FILE))
    if config.mode == "on" and not is_said:
        os.environ[ENV_FILE] = str((data / TOKEN_FILE).absolute())


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions(ProcessOptions):
    """Options of the commands that run a broker."""

    data: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Directory of the broker's data.")
    ]
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None
    name_port: Annotated[int | None, typer.Option(help="Port of the name server; 0 means any.")] = (
        None
    )
    port: Annotated[int | None, typer.Option(help="Port for messages; 0 means any.")] = None
    grpc_port: Annotated[
        int | None, typer.Option(help="Port for 5.x clients; 0 means any, -1 means off.")
    ] = None
    http_port: Annotated[
        int | None, typer.Option(help="Port for probes and metrics; 0 means any.")
    ] = None
    advertise_host: Annotated[
        str | None, typer.Option(help="The address that clients connect to.")
    ] = None
    broker_name: Annotated[str | None, typer.Option(help="Its name in routes.")] = None
    cluster: Annotated[str | None, typer.Option(help="Its cluster's name in routes.")] = None
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Let other machines connect; there is no access control."),
    ] = False

    @property
    def flags(self) -> list[str]:
        """The settings of the short options, then those of ``--set``."""
        broker = settings_of(
            "broker",
            **{name: getattr(self, name) for name in _OF_BROKER},
            name=self.broker_name,
        )
        return [*broker, *self.log_flags, *(self.set_ or ())]
