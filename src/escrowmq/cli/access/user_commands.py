"""``escrowmq user``: create, list, change and delete users of access control."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from escrowmq.cli.access.users import (
    Changed,
    DataOption,
    UserArgument,
    UsersChoice,
    actions_text,
    as_it_is,
    policies_of,
    user_shape,
    users_at,
)
from escrowmq.cli.asking import whoami
from escrowmq.cli.options import (
    DEFAULT_BROKER,
    BrokerOption,
    DryRunOption,
    FileOption,
    Output,
    OutputOption,
    YesOption,
)
from escrowmq.cli.output import as_facts, as_table, print_item, print_table
from escrowmq.cli.shapes.access_shapes import UserChangedShape, UserShape
from escrowmq.model.errors import RequestRefused
from escrowmq.model.private_file import read_private
from escrowmq.protocol.native.user_headers import UserPutHeader

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer()

SECRET_FILE_BYTES_MAX = 1_024
RoleOption = Annotated[
    list[str] | None,
    typer.Option("--role", help="viewer, operator or admin; may be repeated."),
]
SecretFileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File with the secret, which only its owner may read; the default is a new one.",
    ),
]
COLUMNS = (
    "user",
    "kind",
    ("enabled", "is_enabled"),
    ("access key", "access_key"),
    ("roles", lambda user: ", ".join(user.roles)),
    ("policies", lambda user: len(user.policies)),
    "secrets",
)


@app.command()
def create(
    name: UserArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    data: DataOption = None,
    is_super: Annotated[
        bool, typer.Option("--super", help="Let the user do everything; no policy limits it.")
    ] = False,
    role: RoleOption = None,
    access_key: Annotated[
        str, typer.Option(help="The name in signed requests; the default is the user's name.")
    ] = "",
    certificate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SUBJECT", help="Client certificate that stands for the user; may be repeated."
        ),
    ] = None,
    secret_file: SecretFileOption = None,
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
    file: FileOption = None,
) -> None:
    """Create a user, and print its new secret: only here, and only once."""
    header = UserPutHeader(
        user=name,
        by=whoami(),
        kind="super" if is_super else "normal",
        access_key=access_key,
        roles=",".join(role or ()),
        certificate_names="\n".join(certificate or ()),
        secret=secret_in(secret_file),
    )
    with users_at(UsersChoice(broker, data, file)) as place:
        if dry_run and place.users(name):
            raise RequestRefused(
                "user_exists", "choose another name, or change this user", user=name
            )
        done = Changed(is_changed=True, secret="") if dry_run else place.put(header, [])
    show_changed(name, access_key or name, done, output, "created", dry_run=dry_run)


@app.command(name="list")
def list_(
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    data: DataOption = None,
    output: OutputOption = Output.TABLE,
    file: FileOption = None,
) -> None:
    """Print all users, without their secrets."""
    with users_at(UsersChoice(broker, data, file)) as place:
        users = [user_shape(row) for row in place.users()]
    print_table(UserShape, users, output, COLUMNS, "no users")


@app.command()
def show(
    name: UserArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    data: DataOption = None,
    output: OutputOption = Output.TABLE,
    file: FileOption = None,
) -> None:
    """Print a user with its policies, without its secrets."""
    with users_at(UsersChoice(broker, data, file)) as place:
        user = user_shape(place.user(name))
    print_item(user, output, lambda: _shown_text(user))


def _shown_text(user: UserShape) -> str:
    facts = {
        "user": user.user,
        "kind": user.kind,
        "enabled": user.is_enabled,
        "access key": user.access_key,
        "roles": ", ".join(user.roles),
        "certificates": "; ".join(user.certificate_names),
        "secrets": user.secrets,
    }
    rows = [
        (one.effect, actions_text(one.actions), one.resource, ",".join(one.sources))
        for one in user.policies
    ]
    policies = as_table(("effect", "actions", "resource", "sources"), rows, "no policies")
    return f"{as_facts(facts)}\n\n{policies}"


@app.command()
def disable(
    name: UserArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    data: DataOption = None,
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
    file: FileOption = None,
) -> None:
    """Let a user do nothing until it is enabled; it keeps its secrets and policies."""

    def changed(header: UserPutHeader) -> UserPutHeader:
        return msgspec.structs.replace(header, is_enabled=False)

    change(name, UsersChoice(broker, data, file), output, changed, "disabled", dry_run=dry_run)


@app.command()
def enable(
    name: UserArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    data: DataOption = None,
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
    file: FileOption = None,
) -> None:
    """Let a disabled user in again."""

    def changed(header: UserPutHeader) -> UserPutHeader:
        return msgspec.structs.replace(header, is_enabled=True)

    change(name, UsersChoice(broker, data, file), output, changed, "enabled", dry_run=dry_run)


@app.command()
def rotate(
    name: UserArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    data: DataOption = None,
    retire: Annotated[
        bool, typer.Option("--retire", help="End the old secret; make no new one.")
    ] = False,
    secret_file: SecretFileOption = None,
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
    file: FileOption = None,
) -> None:
    """Give a user a new secret beside the newest one, or end the old one of two."""
    after, done = ("retire", "left with one secret") if retire else ("rotate", "given a new secret")
    secret = secret_in(secret_file)

    def changed(header: UserPutHeader) -> UserPutHeader:
        return msgspec.structs.replace(header, secrets_after=after, secret=secret)

    change(name, UsersChoice(broker, data, file), output, changed, done, dry_run=dry_run)


@app.command()
def delete(
    name: UserArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    *,
    data: DataOption = None,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
    dry_run: DryRunOption = False,
    file: FileOption = None,
) -> None:
    """Delete a user with its secrets and policies."""
    with users_at(UsersChoice(broker, data, file)) as place:
        place.user(name)
        if not dry_run:
            if not yes:
                typer.confirm(f"Delete user {name}?", abort=True, err=True)
            place.remove(name)
    done = Changed(is_changed=True, secret="")
    show_changed(name, "", done, output, "deleted", dry_run=dry_run)


def change(
    name: str,
    choice: UsersChoice,
    output: Output,
    changed: Callable[[UserPutHeader], UserPutHeader],
    word: str,
    *,
    dry_run: bool,
) -> None:
    """Change a user as it is now, and print what was done."""
    with users_at(choice) as place:
        row = place.user(name)
        header = changed(as_it_is(row))
        is_other = header != as_it_is(row)
        if header.secrets_after == "retire":
            is_other = row.secrets > 1
        done = Changed(is_other, "") if dry_run else place.put(header, policies_of(row))
    show_changed(name, row.access_key, done, output, word, dry_run=dry_run)


def show_changed(
    name: str, access_key: str, done: Changed, output: Output, word: str, *, dry_run: bool
) -> None:
    """Print how a change of a user ended; a new secret is printed here and nowhere else."""
    shape = UserChangedShape(
        user=name,
        is_changed=done.is_changed,
        access_key=access_key if done.secret else None,
        secret=done.secret or None,
        is_dry_run=dry_run,
    )
    print_item(shape, output, lambda: _changed_text(shape, word))


def _changed_text(shape: UserChangedShape, word: str) -> str:
    if not shape.is_changed:
        return f"user {shape.user} is {word} already"
    if shape.is_dry_run:
        return f"user {shape.user} would be {word}"
    text = f"user {shape.user} is {word}"
    if shape.secret is None:
        return text
    told = as_facts({"access key": shape.access_key, "secret": shape.secret})
    return f"{text}; the broker does not show this secret again\n{told}"


def secret_in(path: Path | None) -> str:
    """Return the secret in a file; empty without a file."""
    if path is None:
        return ""
    data = read_private("secret_file_unsafe", path, bytes_max=SECRET_FILE_BYTES_MAX)
    return data.decode("utf-8", "replace").strip()
