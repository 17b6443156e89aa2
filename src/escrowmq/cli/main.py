"""The ``escrowmq`` command.

Importing this module must stay cheap: a command imports numpy, pyarrow and what needs them when it
runs.  Errors made on purpose become one line and an exit code by their kind; a traceback is always
our bug.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from escrowmq.cli import (
    config_commands,
    group_commands,
    lake_commands,
    message_commands,
    store_commands,
    topic_commands,
    txn_commands,
)
from escrowmq.cli.audit_command import audit
from escrowmq.cli.demo import demo
from escrowmq.cli.pipeline_command import pipeline
from escrowmq.cli.serve import serve
from escrowmq.cli.status import status
from escrowmq.cli.up import up
from escrowmq.model.errors import (
    EscrowError,
    OutcomeUnknown,
    ProtocolViolation,
    RequestRefused,
    StoreCorrupt,
    StoreUnusable,
    Unavailable,
)

#: By the error's class: who must act.  Bad arguments end with 2 too.
EXITS: dict[type[EscrowError], int] = {
    RequestRefused: 2,
    Unavailable: 3,
    OutcomeUnknown: 4,
    StoreCorrupt: 5,
    StoreUnusable: 5,
    ProtocolViolation: 6,
}

#: Who must act is the error's class, so the class says what to do; the error itself says where.
REMEDIES: dict[type[EscrowError], str] = {
    RequestRefused: "repeating it unchanged will not help",
    Unavailable: "nothing was done; try again later",
    OutcomeUnknown: "it may have happened; look before you repeat it",
    StoreCorrupt: "keep the data directory as it is; durable bytes are damaged",
    StoreUnusable: "make the data directory usable and start again",
    ProtocolViolation: "check which program is at the other end",
}

app = typer.Typer(
    help="A message reaches consumers if, and only if, the sender's own transaction committed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(config_commands.app, name="config")
app.add_typer(group_commands.app, name="group")
app.add_typer(lake_commands.app, name="lake")
app.add_typer(message_commands.app, name="message")
app.add_typer(topic_commands.app, name="topic")
app.add_typer(txn_commands.app, name="txn")
app.add_typer(store_commands.app, name="store")
app.command()(audit)
app.command()(demo)
app.command()(pipeline)
app.command()(serve)
app.command()(status)
app.command()(up)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it with the flag's value
    if wanted:
        typer.echo(f"escrowmq {version('escrowmq')}")
        raise typer.Exit


@app.callback()
def escrowmq(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Hold the options that stand before every command."""


def describe(error: EscrowError) -> str:
    """One line: code, what is wrong with which value, and what to do."""
    remedy = next((REMEDIES[kind] for kind in type(error).__mro__ if kind in REMEDIES), "")
    text = " ".join(str(error).split())
    return f"escrowmq: {text}; {remedy}" if remedy else f"escrowmq: {text}"


def refuse_without_asserts() -> None:
    """Assertions guard the laws of the store; without them we would serve unguarded."""
    if not __debug__:
        raise RequestRefused("asserts_disabled", "run Python without -O and PYTHONOPTIMIZE")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; never returns."""
    try:
        refuse_without_asserts()
        # What a person must know, a command prints; the log is the broker's.
        logging.getLogger("escrowmq").addHandler(logging.NullHandler())
        app(arguments, prog_name="escrowmq")
    except EscrowError as error:
        print(describe(error), file=sys.stderr)  # noqa: T201 - the command line is where we print
        sys.exit(next(EXITS[kind] for kind in type(error).__mro__ if kind in EXITS))


if __name__ == "__main__":
    main()
