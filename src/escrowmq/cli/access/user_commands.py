"""``escrowmq user``: create, list, change and delete users of access control."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from escrowmq.cli.access.user_options import ChangeOptions, RoleOption, UserArgument, UsersOptions
from escrowmq.cli.access.users import (
    Changed,
    actions_text,
    as_it_is,
    policies_of,
    user_shape,
    users_at,
)
from escrowmq.cli.asking import whoami
from escrowmq.cli.options import YesOption, grouped
from escrowmq.cli.output import as_facts, as_table, print_item, print_table
from escrowmq.cli.shapes.access_shapes import UserChangedShape, UserShape
from escrowmq.model.errors import RequestRefused
from escrowmq.model.secret import read_private
from escrowmq.protocol.native.user_headers import UserPutHeader

app = typer.Typer()

SECRET_FILE_BYTES_MAX = 1_024
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions(UsersOptions):
    """Options of ``user show``."""

    name: UserArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class OneChangeOptions(ChangeOptions):
    """Options of the commands that change one thing of a user."""

    name: UserArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOptions(ChangeOptions):
    """Options of ``user create``."""

    name: UserArgument
    is_super: Annotated[
        bool, typer.Option("--super", help="Let the user do everything; no policy limits it.")
    ] = False
    role: RoleOption = None
    access_key: Annotated[
        str, typer.Option(help="The name in signed requests; the default is the user's name.")
    ] = ""
    certificate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SUBJECT", help="Client certificate that stands for the user; may be repeated."
        ),
    ] = None
    secret_file: SecretFileOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateOptions(OneChangeOptions):
    """Options of ``user rotate``."""

    retire: Annotated[
        bool, typer.Option("--retire", help="End the old secret; make no new one.")
    ] = False
    secret_file: SecretFileOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions(OneChangeOptions):
    """Options of ``user delete``."""

    yes: YesOption = False


@app.command()
@grouped
def create(given: CreateOptions) -> None:
    """Create a user, and print its new secret: only here, and only once."""
    user = given.name
    header = UserPutHeader(
        user=user,
        by=whoami(),
        kind="super" if given.is_super else "normal",
        access_key=given.access_key,
        roles=",".join(given.role or ()),
        certificate_names="\n".join(given.certificate or ()),
        secret=secret_in(given.secret_file),
    )
    with users_at(given) as place:
        if given.dry_run and place.users(user):
            raise RequestRefused(
                "user_exists", "choose another name, or change this user", user=user
            )
        done = Changed(is_changed=True, secret="") if given.dry_run else place.put(header, [])
    show_changed(user, done, given, "created", access_key=given.access_key or user)


@app.command(name="list")
@grouped
def list_(given: UsersOptions) -> None:
    """Print all users, without their secrets."""
    with users_at(given) as place:
        users = [user_shape(row) for row in place.users()]
    print_table(UserShape, users, given.output, COLUMNS, "no users")


@app.command()
@grouped
def show(given: ShowOptions) -> None:
    """Print a user with its policies, without its secrets."""
    with users_at(given) as place:
        user = user_shape(place.user(given.name))
    print_item(user, given.output, lambda: _shown_text(user))


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
@grouped
def disable(given: OneChangeOptions) -> None:
    """Let a user do nothing until it is enabled; it keeps its secrets and policies."""
    _change(given, "disabled", is_enabled=False)


@app.command()
@grouped
def enable(given: OneChangeOptions) -> None:
    """Let a disabled user in again."""
    _change(given, "enabled", is_enabled=True)


@app.command()
@grouped
def rotate(given: RotateOptions) -> None:
    """Give a user a new secret beside the newest one, or end the old one of two."""
    secret = secret_in(given.secret_file)
    if given.retire:
        _change(given, "left with one secret", secrets_after="retire", secret=secret)
    else:
        _change(given, "given a new secret", secrets_after="rotate", secret=secret)


@app.command()
@grouped
def delete(given: DeleteOptions) -> None:
    """Delete a user with its secrets and policies."""
    user = given.name
    with users_at(given) as place:
        place.user(user)
        if not given.dry_run:
            if not given.yes:
                typer.confirm(f"Delete user {user}?", abort=True, err=True)
            place.remove(user)
    show_changed(user, Changed(is_changed=True, secret=""), given, "deleted")


def _change(given: OneChangeOptions, word: str, **fields: Any) -> None:  # noqa: ANN401 - of any field
    """Change these fields of a user, keep the others as they are, and print what was done."""
    with users_at(given) as place:
        row = place.user(given.name)
        known = as_it_is(row)
        header = msgspec.structs.replace(known, **fields)
        is_other = header != known
        if header.secrets_after == "retire":
            is_other = row.secrets > 1
        done = Changed(is_other, "") if given.dry_run else place.put(header, policies_of(row))
    show_changed(given.name, done, given, word, access_key=row.access_key)


def show_changed(
    user: str, done: Changed, given: ChangeOptions, word: str, *, access_key: str = ""
) -> None:
    """Print how a change of a user ended; a new secret is printed here and nowhere else."""
    shape = UserChangedShape(
        user=user,
        is_changed=done.is_changed,
        access_key=access_key if done.secret else None,
        secret=done.secret or None,
        is_dry_run=given.dry_run,
    )
    print_item(shape, given.output, lambda: _changed_text(shape, word))


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
