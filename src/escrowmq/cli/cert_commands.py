"""``escrowmq cert``: certificates of a private CA, for development and small networks."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.cli.options import Output, OutputOption, bad_option
from escrowmq.cli.output import print_table
from escrowmq.cli.shapes.tool_shapes import CertificateShape
from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from escrowmq.broker.net.certificates import MadePair

app = typer.Typer()

CA, SERVER = "ca", "server"
CLIENTS_MAX = 100
HOSTS_MAX = 100
NAME_CHARS_MAX = 64
DAYS_MAX = 3_650
_OWNER_ONLY = 0o600
_FOLDER_OWNER_ONLY = 0o700


@app.callback()
def cert() -> None:
    """Make certificates of a private CA."""


@app.command()
def make(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder for the files; it may exist.")
    ],
    *,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME|IP",
            help="Where clients reach the broker, beside localhost; may be repeated.",
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="NAME", help="A client to make one for; may be repeated."),
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=DAYS_MAX, help="For how long they are valid.")
    ] = 365,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a CA, a certificate of the broker, and one of each client.

    A CA that the folder holds is used again, so clients can be added. No file is replaced.
    """
    from escrowmq.broker.net import certificates
    from escrowmq.broker.net.certificates import CertificateUse, Subject
    from escrowmq.broker.net.tls import LOOPBACK

    hosts, clients = _checked("--host", host, HOSTS_MAX), _checked("--client", client, CLIENTS_MAX)
    has_ca = _path(folder, CA).exists() and _path(folder, CA, "-key").exists()
    has_server = has_ca and _path(folder, SERVER).exists() and not hosts
    new = [*([] if has_ca else [CA]), *([] if has_server else [SERVER]), *clients]
    _refuse_to_replace(folder, new)
    now_ms = time.time_ns() // 1_000_000
    folder.mkdir(mode=_FOLDER_OWNER_ONLY, parents=True, exist_ok=True)
    ca = (
        certificates.MadePair(
            _path(folder, CA).read_bytes(), _path(folder, CA, "-key").read_bytes()
        )
        if has_ca
        else certificates.make_ca("EscrowMQ development CA", now_ms, days)
    )
    for name in new:
        if name == CA:
            made = ca
        elif name == SERVER:
            subject = Subject("EscrowMQ broker", (*LOOPBACK, *hosts))
            made = certificates.make_leaf(ca, CertificateUse.SERVER, subject, now_ms, days)
        else:
            made = certificates.make_leaf(ca, CertificateUse.CLIENT, Subject(name), now_ms, days)
        _write(folder, name, made)
    shapes = [
        CertificateShape(
            name=name,
            cert=str(_path(folder, name)),
            key=str(_path(folder, name, "-key")),
            expires_at_ms=certificates.expires_at_ms(_path(folder, name).read_bytes()),
        )
        for name in new
    ]
    print_table(CertificateShape, shapes, output, ("name", "cert", "key"), "nothing was missing")


def _path(folder: Path, name: str, suffix: str = "") -> Path:
    return folder / f"{name}{suffix}.pem"


def _checked(option: str, given: list[str] | None, count_max: int) -> list[str]:
    names = list(dict.fromkeys(given or ()))
    if len(names) > count_max:
        raise bad_option(option, f"at most {count_max} of them", str(len(names)))
    for name in names:
        # A client's name is also the name of its files.
        is_plain = all(one.isalnum() or one in "-_.:" for one in name) and name[:1] not in (
            ".",
            "-",
        )
        if not 0 < len(name) <= NAME_CHARS_MAX or not is_plain or not name.isascii():
            allowed = f"1 to {NAME_CHARS_MAX} letters, digits, and -_.: inside"
            raise bad_option(option, allowed, name)
    if option == "--client" and (taken := {CA, SERVER} & set(names)):
        raise bad_option(option, "another name: this one is not a client's", taken.pop())
    return names


def _refuse_to_replace(folder: Path, names: list[str]) -> None:
    for name in names:
        for path in (_path(folder, name), _path(folder, name, "-key")):
            if path.exists():
                raise RequestRefused(
                    "file_exists", "choose another folder, or move the file away", path=str(path)
                )


def _write(folder: Path, name: str, made: MadePair) -> None:
    for path, data in ((_path(folder, name, "-key"), made.key), (_path(folder, name), made.cert)):
        # O_EXCL: two of these commands at once must not mix their files.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
