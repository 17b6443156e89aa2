"""Options about TLS, of every command that connects to a broker.

They become environment variables, which every connection of this process reads, and also the
processes that it starts. No function in between has to pass them on.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from escrowmq.model.tls import SWITCH, VARIABLES, VERIFYING

#: Parameters that hold the address of a broker.
_ADDRESSES = frozenset({"broker", "brokers"})
_HELP = "TLS: "

_FILES: Mapping[str, Any] = {
    "tls_ca_file": Annotated[
        Path | None,
        typer.Option(
            "--tls-ca",
            metavar="FILE",
            help=f"{_HELP}CA of the broker, as PEM; the default is ${VARIABLES['ca_file']}.",
        ),
    ],
    "tls_cert_file": Annotated[
        Path | None,
        typer.Option("--tls-cert", metavar="FILE", help=f"{_HELP}our certificate, as PEM."),
    ],
    "tls_key_file": Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help=f"{_HELP}its key, as PEM.")
    ],
    "tls_server_name": Annotated[
        str | None,
        typer.Option(
            "--tls-server-name", metavar="NAME", help=f"{_HELP}the name to verify, not the address."
        ),
    ],
}
#: Fields of ``Tls``, by the option's parameter.
_FIELDS = {
    "tls_ca_file": "ca_file",
    "tls_cert_file": "cert_file",
    "tls_key_file": "key_file",
    "tls_server_name": "server_name",
}
_FLAGS: Mapping[str, Any] = {
    "tls": Annotated[
        bool, typer.Option("--tls", help=f"{_HELP}use it, with the CAs of the system.")
    ],
    "tls_no_verify": Annotated[
        bool, typer.Option("--tls-no-verify", help=f"{_HELP}take any certificate of the broker.")
    ],
}


def with_tls(run: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command if it connects to a broker."""
    signature = inspect.signature(run)
    known = signature.parameters.keys()
    if not _ADDRESSES & known or known & _FILES.keys():
        # Tests build the command line more than once.
        return run
    hints = get_type_hints(run, include_extras=True)

    @wraps(run)
    def command(**given: object) -> None:
        ours = {name: given.pop(name) for name in (*_FILES, *_FLAGS)}
        os.environ.update(variables_of(ours))
        run(**given)

    parameters = [
        # ``grouped`` has no hints, but annotations in its signature.
        one.replace(annotation=hints.get(one.name, one.annotation), kind=one.KEYWORD_ONLY)
        for one in signature.parameters.values()
    ]
    for options, default in ((_FILES, None), (_FLAGS, False)):
        parameters += [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
            for name, annotation in options.items()
        ]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    # Typer would prefer these to the signature.
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def add_tls(app: typer.Typer) -> None:
    """Add the options to the commands of a group."""
    for one in app.registered_commands:
        if one.callback is not None:
            one.callback = with_tls(one.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_tls(group.typer_instance)


def variables_of(given: Mapping[str, object]) -> dict[str, str]:
    """Return the environment variables that stand for the options."""
    found = {
        VARIABLES[_FIELDS[name]]: os.fspath(value)  # type: ignore[call-overload]  # a path or a text
        for name, value in given.items()
        if name in _FILES and value is not None
    }
    if given.get("tls_no_verify"):
        found[VERIFYING] = "off"
    if found or given.get("tls"):
        found[SWITCH] = "on"
    return found
