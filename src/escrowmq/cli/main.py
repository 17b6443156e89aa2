"""The ``escrowmq`` command.

Importing this module must stay cheap: a command imports numpy, pyarrow and their users when it
runs. An ``EscrowError`` becomes one line and an exit code by its class; a traceback is always our
bug.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import zip_longest
from typing import Annotated, Any, NamedTuple

import typer

from escrowmq.cli.tls_options import add_tls, with_tls
from escrowmq.model import errors
from escrowmq.model.errors import EscrowError, RequestRefused, StoreUnusable

#: Exit codes by the error's class, which says who must act. Bad arguments end with 2, too.
EXITS: dict[type[EscrowError], int] = {
    RequestRefused: 2,
    errors.Unavailable: 3,
    errors.OutcomeUnknown: 4,
    errors.StoreCorrupt: 5,
    StoreUnusable: 5,
    errors.ProtocolViolation: 6,
}

#: Codes whose errors count as another class here: the peer is Apache's broker or an older release.
COUNTED_AS: dict[str, type[EscrowError]] = {"request_unsupported": errors.ProtocolViolation}

#: What to do, by the error's class; the error itself says where.
REMEDIES: dict[type[EscrowError], str] = {
    RequestRefused: "repeating it unchanged will not help",
    errors.Unavailable: "nothing was done; try again later",
    errors.OutcomeUnknown: "it may have happened; check before you repeat it",
    errors.StoreCorrupt: "durable bytes are damaged; keep the data directory as it is",
    StoreUnusable: "make the data directory usable and start again",
    errors.ProtocolViolation: "check which program is at the other end",
}

#: Exit code: the user declined at a prompt.
EXIT_DECLINED = 1
EXIT_USAGE = 2
#: Exit code: the reader of the output has gone, as for a process that SIGPIPE ended.
EXIT_READER_GONE = 141
#: Exit code that a shell reports for a program that Ctrl-C ended.
EXIT_INTERRUPTED = 130
#: The lowest and the highest Python version that we test on.
PYTHONS = ((3, 11), (3, 13))
#: Typer's name for the variable by which a shell asks for completions.
COMPLETING = "_ESCROWMQ_COMPLETE"


class LazyCommand(NamedTuple):
    """A command or a command group that is imported on demand."""

    #: ``module:name`` below this package: a function, or for a group its ``typer.Typer``.
    home: str
    #: Its line in the list of commands, and a group's help; the first line of a command's help.
    about: str

    def load(self) -> Any:  # noqa: ANN401 - a function, or a typer.Typer
        """Import the command."""
        module, _, name = self.home.partition(":")
        return getattr(import_module(f"escrowmq.cli.{module}"), name)


#: All commands by name, in the order of the help.
COMMANDS: Mapping[str, LazyCommand] = {
    "up": LazyCommand("run.up:up", "Run a broker and its pipeline until SIGTERM or Ctrl-C."),
    "serve": LazyCommand(
        "run.serve:serve", "Run a broker and its name server until SIGTERM or Ctrl-C."
    ),
    "pipeline": LazyCommand(
        "run.pipeline_command:pipeline",
        "Settle transactions and archive topics until SIGTERM or Ctrl-C.",
    ),
    "demo": LazyCommand(
        "run.demo:demo", "Pay orders while services are killed, and audit the result."
    ),
    "doctor": LazyCommand(
        "doctor.command:doctor", "Check machine, data, broker and ledgers, and give advice."
    ),
    "status": LazyCommand(
        "admin.status:status", "Print a broker's state: undecided transactions, clients, disk."
    ),
    "topic": LazyCommand("admin.topic_commands:app", "List, create and delete topics."),
    "group": LazyCommand(
        "admin.group_commands:app", "List groups; reset, pause and resume consumer groups."
    ),
    "message": LazyCommand("admin.message_commands:app", "Send, find and follow messages."),
    "txn": LazyCommand("txn.commands:app", "List, explain and decide undecided transactions."),
    "dlq": LazyCommand(
        "admin.dlq_commands:app", "List dead letters of consumer groups, and send them again."
    ),
    "lake": LazyCommand("lake.lake_commands:app", "Query the lake, and maintain it."),
    "audit": LazyCommand(
        "lake.audit_command:audit", "Prove that brokers, lake, ledgers and your table agree."
    ),
    "ledger": LazyCommand(
        "lake.ledger_commands:app", "Show the tables of a ledger, and migrate them."
    ),
    "user": LazyCommand(
        "access.user_commands:app", "Create, list, change and delete users of access control."
    ),
    "acl": LazyCommand(
        "access.acl_commands:app", "Grant, revoke, list and explain the policies of users."
    ),
    "clock": LazyCommand(
        "admin.clock_commands:app", "Show a broker's clocks, and confirm the time."
    ),
    "store": LazyCommand(
        "data.store_commands:app", "Check a data directory, repair it, change its state store."
    ),
    "backup": LazyCommand("data.backup_commands:backup", "Copy a broker's data while it runs."),
    "restore": LazyCommand(
        "data.backup_commands:restore", "Create a data directory from a backup."
    ),
    "cert": LazyCommand("cert_commands:app", "Make certificates of a private CA for TLS."),
    "config": LazyCommand(
        "config_commands:app", "Show the settings; convert those of a RocketMQ broker."
    ),
    "bench": LazyCommand(
        "run.bench_command:bench", "Run a benchmark program, and print its figures."
    ),
}


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it with the flag's value
    if wanted:
        from importlib.metadata import version

        typer.echo(f"escrowmq {version('escrowmq')}")
        raise typer.Exit


def escrowmq(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Hold the options that come before the command."""


def app_for(words: Sequence[str], environ: Mapping[str, str]) -> typer.Typer:
    """Build the command line with the requested command, and only the names of the others.

    Importing all of them would take longer than most of them run.
    """
    app = typer.Typer(
        help="A message reaches consumers if, and only if, the sender's own transaction committed.",
        no_args_is_help=True,
        # Plain help: importing rich would take longer than all other imports together.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(escrowmq)
    if COMPLETING in environ:
        # The shell asks for completions and passes the words so far in the environment.
        words = environ.get("COMP_WORDS", environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]
    wanted = next((word for word in words if not word.startswith("-")), None)
    for name, entry in COMMANDS.items():
        if name != wanted:
            app.command(name, help=entry.about)(_unloaded)
        elif isinstance(loaded := entry.load(), typer.Typer):
            loaded.rich_markup_mode = None
            add_tls(loaded)
            app.add_typer(loaded, name=name, help=entry.about, no_args_is_help=True)
        else:
            # A benchmark program has its own options.
            others = {"allow_extra_args": True, "ignore_unknown_options": True}
            app.command(name, context_settings=others if name == "bench" else None)(
                with_tls(loaded)
            )
    return app


def _unloaded() -> None:
    """Stand in for a command that was not requested, so that the help lists it."""


def describe(error: EscrowError) -> str:
    """Format an error as one line: its code, what is wrong with which value, and what to do."""
    remedy = _remedy(error)
    text = " ".join(str(error).split())
    return f"escrowmq: {text}; {remedy}" if remedy else f"escrowmq: {text}"


def _remedy(error: EscrowError) -> str:
    return next((REMEDIES[kind] for kind in _classes(error) if kind in REMEDIES), "")


def _classes(error: EscrowError) -> tuple[type, ...]:
    return COUNTED_AS.get(error.code, type(error)).__mro__


def refuse_without_asserts() -> None:
    """Refuse to run with ``-O``: assertions guard the laws of the store."""
    if not __debug__:
        raise RequestRefused("asserts_disabled", "run Python without -O and PYTHONOPTIMIZE")


def refuse_other_pythons(found: tuple[int, ...] = sys.version_info[:2]) -> None:
    """Refuse an untested Python version before it fails on a missing feature."""
    lowest, highest = PYTHONS
    if not lowest <= found[:2] <= highest:
        raise RequestRefused(
            "python_unsupported",
            f"use Python {_dotted(lowest)} to {_dotted(highest)}",
            python=_dotted(found),
        )


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; never returns."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    is_json = wants_json(words)
    try:
        code = _run(words, is_json=is_json)
    except EscrowError as error:
        code = _tell(error, is_json=is_json)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        code = _reader_gone()
    except SystemExit as ended:
        # Click turns a broken pipe into exit code 1, which has another meaning here.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        code = _reader_gone()
    except OSError as error:
        refused = StoreUnusable(
            "system_refused",
            "the system refused it: check the path, its permissions and the free space",
            path=error.filename,
            reason=error.strerror or str(error),
        )
        code = _tell(refused, is_json=is_json)
    sys.exit(code)


def wants_json(words: Sequence[str]) -> bool:
    """Whether the command line asks for JSON, so errors are JSON, too. The last option wins."""
    wanted = ""
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if word == "--":
            break
        if word in ("-o", "--output"):
            wanted = following
        elif word.startswith("--output="):
            wanted = word.removeprefix("--output=")
        elif word.startswith("-o") and not word.startswith("--"):
            wanted = word.removeprefix("-o")
    return wanted == "json"


def _reader_gone() -> int:
    """Return the exit code for a closed output pipe, such as ``| head``."""
    # Python flushes standard output when it exits, so it must point to a file that accepts it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_READER_GONE


def _run(words: list[str], *, is_json: bool) -> int:
    refuse_other_pythons()
    refuse_without_asserts()
    # Commands print what the user must know; only the broker and the pipeline log.
    logging.getLogger("escrowmq").addHandler(logging.NullHandler())
    try:
        done = app_for(words, os.environ)(words, prog_name="escrowmq", standalone_mode=False)
    except typer.Abort:
        return _say(EXIT_DECLINED, DECLINED, is_json=is_json)
    except USAGE_ERROR as error:
        return _explain(error, is_json=is_json)
    # Flush here: a failure at interpreter exit could only print a traceback.
    sys.stdout.flush()
    # Typer returns the code of a typer.Exit that the command raised.
    return done if isinstance(done, int) else 0


#: Typer's base class of errors about the arguments.
USAGE_ERROR: Any = typer.BadParameter.__base__


def _explain(error: Any, *, is_json: bool) -> int:  # noqa: ANN401 - as above
    """Print one line about bad arguments, or the whole help if there were no arguments."""
    text = error.format_message()
    if "\n" in text:
        print(text)  # noqa: T201 - the command line is where we print
        return EXIT_USAGE
    path = error.ctx.command_path if error.ctx is not None else "escrowmq"
    said = _Said("bad_arguments", text.rstrip("."), {}, f"{path} --help tells more")
    return _say(EXIT_USAGE, said, is_json=is_json)


def _tell(error: EscrowError, *, is_json: bool) -> int:
    code = next(EXITS[kind] for kind in _classes(error) if kind in EXITS)
    said = _Said(error.code, error.message, error.fields, _remedy(error), describe(error))
    return _say(code, said, is_json=is_json)


class _Said(NamedTuple):
    """Why a command failed: the fields of the JSON error, and its text."""

    code: str
    message: str
    facts: Mapping[str, object]
    remedy: str
    #: The text for people; if empty, it is the message and the remedy.
    line: str = ""


DECLINED = _Said("declined", "nothing was done", {}, "", "escrowmq: nothing was done")


def _say(exit_code: int, said: _Said, *, is_json: bool) -> int:
    """Print one line on standard error; return the exit code."""
    from escrowmq.cli.preview import escaped

    line = escaped(said.line or f"escrowmq: {said.message}; {said.remedy}")
    if is_json:
        import json

        import msgspec

        from escrowmq.cli.shapes.broker_shapes import ErrorShape

        facts = msgspec.to_builtins(dict(said.facts), enc_hook=str)
        told = ErrorShape(
            code=said.code,
            message=" ".join(said.message.split()),
            facts=facts,
            remedy=said.remedy,
            exit_code=exit_code,
        )
        line = json.dumps(msgspec.to_builtins(told))
    print(line, file=sys.stderr)  # noqa: T201 - the command line is where we print
    return exit_code


if __name__ == "__main__":
    main()
