"""Options that several commands share. It imports little, because quick commands import it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from escrowmq.model.errors import RequestRefused

DEFAULT_BROKER = "127.0.0.1:10911"


class Output(StrEnum):
    """Output format of a command that ends: a table for people, JSON or CSV for programs."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="A table for people; JSON or CSV for programs.")
]


class LineOutput(StrEnum):
    """Output format of a command that prints progress: text lines, or JSON."""

    TABLE = "table"
    JSON = "json"


LineOutputOption = Annotated[
    LineOutput, typer.Option("--output", "-o", help="Text for people, or JSON lines.")
]
FileOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="TOML file; the default is $ESCROWMQ_CONFIG."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set one value; may be repeated."),
]
BrokerOption = Annotated[
    str,
    typer.Option(
        "--broker", "-b", metavar="HOST:PORT", envvar="ESCROWMQ_BROKER", help="The broker to ask."
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
TopicOption = Annotated[str, typer.Option("--topic", help="Name of the topic.")]
StoppedDataOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Data directory of a stopped broker."),
]
LakeDataOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", metavar="DIR", help="The broker's data directory, which holds the lake."
    ),
]
LakeOption = Annotated[
    str | None, typer.Option("--lake", metavar="URI", help="The lake, if it is in another place.")
]
MasterOption = Annotated[str | None, typer.Option(help="Spark master, such as local[2].")]


def grouped(run: Callable[[Any], None]) -> Callable[..., None]:
    """Make a command whose options are the fields of the dataclass that ``run`` takes.

    A field of a subclass comes before those of its base class, which several commands share.
    """
    kind = get_type_hints(run)["given"]
    hints = get_type_hints(kind, include_extras=True)
    known = inspect.signature(kind).parameters
    fields = (name for one in kind.__mro__ for name in vars(one).get("__annotations__", ()))

    @wraps(run)
    def command(**given: object) -> None:
        run(kind(**given))

    parameters = [known[name].replace(annotation=hints[name]) for name in fields]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def settings_of(section: str, **given: object) -> list[str]:
    """Return a section's settings as ``section.key=value``, without those that are None."""
    return [f"{section}.{key}={value}" for key, value in given.items() if value is not None]


def bad_option(option: str, allowed: str, value: str = "") -> RequestRefused:
    """Return the error about an option's value; ``allowed`` says what would be right."""
    return RequestRefused("bad_option", allowed, option=option, value=value[:128])


def make_report_directory(directory: Path, file: str) -> None:
    """Check that a report can be written before the work, which takes minutes."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / file).touch()
    except OSError as error:
        allowed = f"a directory that can be written: {error}"
        raise bad_option("--report", allowed, str(directory)) from None
