"""Options that the commands about users and their policies share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from escrowmq.cli import options

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]
RoleOption = Annotated[
    list[str] | None,
    typer.Option("--role", help="viewer, operator or admin; may be repeated."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersOptions:
    """Options that say which broker's users are meant, and how the result is printed."""

    broker: options.BrokerOption = options.DEFAULT_BROKER
    #: If it is given, the broker is not asked.
    data: options.StoppedDataOption = None
    output: options.OutputOption = options.Output.TABLE
    #: The broker's settings, for its data directory.
    file: options.FileOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions(UsersOptions):
    """Options of every command that changes a user."""

    dry_run: options.DryRunOption = False
