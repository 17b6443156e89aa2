"""Reads users from a file: what ``escrowmq user list -o json`` prints, with a secret for each."""

from __future__ import annotations

from pathlib import Path

import msgspec

from escrowmq.cli.asking import whoami
from escrowmq.model.errors import RequestRefused
from escrowmq.model.secret import read_private
from escrowmq.protocol.native.user_headers import PolicyRow, UserPutHeader

USERS_MAX = 10_000
FILE_BYTES_MAX = 64 * 1024 * 1024


class PolicyInFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy, as ``PolicyShape`` prints it."""

    resource: str
    actions: list[str]
    sources: list[str] = []
    effect: str = "allow"


class UserInFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user, as ``UserShape`` prints it, and its secret."""

    user: str
    secret: str
    kind: str = "normal"
    is_enabled: bool = True
    access_key: str = ""
    roles: list[str] = []
    certificate_names: list[str] = []
    policies: list[PolicyInFile] = []
    #: Printed by the list; the file has one secret for each user.
    secrets: int = 1

    def __repr__(self) -> str:
        """Hide the secret."""
        return f"UserInFile(user={self.user!r})"


UserChange = tuple[UserPutHeader, list[PolicyRow]]


def read_users(path: Path) -> list[UserChange]:
    """Return the requests that create the users of a file; the file must be private."""
    data = read_private("users_file_unsafe", path, bytes_max=FILE_BYTES_MAX)
    try:
        found = msgspec.json.decode(data, type=list[UserInFile])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        # The error names the place and the type, never the value, which may be a secret.
        raise RequestRefused(
            "users_file_malformed",
            f"an array of users as `escrowmq user list -o json` prints them, each with a secret:"
            f" {error}",
            path=str(path),
        ) from None
    names = [one.user for one in found]
    if len(set(names)) < len(names) or len(names) > USERS_MAX:
        raise RequestRefused(
            "users_file_malformed",
            f"name each user once, and at most {USERS_MAX}",
            path=str(path),
            users=len(names),
        )
    return [_change(one) for one in found]


def _change(one: UserInFile) -> UserChange:
    header = UserPutHeader(
        user=one.user,
        by=whoami(),
        kind=one.kind,
        is_enabled=one.is_enabled,
        access_key=one.access_key,
        roles=",".join(one.roles),
        certificate_names="\n".join(one.certificate_names),
        secret=one.secret,
    )
    policies = [
        PolicyRow(
            resource=policy.resource,
            actions=",".join(policy.actions),
            sources=",".join(policy.sources),
            effect=policy.effect,
        )
        for policy in one.policies
    ]
    return header, policies
