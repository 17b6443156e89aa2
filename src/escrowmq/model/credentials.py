"""Credentials of a client: given by a program, by the environment, or by a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from escrowmq.model.errors import RequestRefused
from escrowmq.model.secret import Secret, read_private

if TYPE_CHECKING:
    from collections.abc import Mapping

ENV_ACCESS_KEY = "ESCROWMQ_ACCESS_KEY_ID"
ENV_SECRET = "ESCROWMQ_SECRET"  # noqa: S105 - a variable's name
ENV_FILE = "ESCROWMQ_CREDENTIALS_FILE"
FILE_BYTES_MAX = 4_096
LOCAL_ADMIN = "@local-admin"
"""Access key of the admin that has the token in the data directory. No user can have this name."""
_WHAT_FILE = 'a credentials file is JSON: {"access_key": "…", "secret": "…"}'


class _CredentialsFile(msgspec.Struct, frozen=True):
    """The content of a credentials file."""

    access_key: str
    secret: str

    def __repr__(self) -> str:
        return f"_CredentialsFile(access_key={self.access_key!r})"


class Credentials:
    """A user's access key and secret. The secret is in no repr, no error and no pickle."""

    __slots__ = ("_secret", "access_key")

    def __init__(self, access_key: str, secret: str) -> None:
        self.access_key = access_key
        self._secret = Secret(secret)
        if not access_key or not secret:
            raise RequestRefused("credentials_incomplete", "give an access key and a secret")

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key!r})"

    @property
    def key(self) -> bytes:
        """The secret as the key of signatures."""
        return self._secret.reveal().encode()

    @classmethod
    def from_file(cls, path: str | Path) -> Credentials:
        """Read a credentials file, which only its owner may read."""
        data = read_private("credentials_unsafe", Path(path), bytes_max=FILE_BYTES_MAX)
        try:
            found = msgspec.json.decode(data, type=_CredentialsFile)
        except msgspec.MsgspecError:
            # The error of the decoder may show a part of the file.
            raise RequestRefused("credentials_unreadable", _WHAT_FILE, path=str(path)) from None
        return cls(found.access_key, found.secret)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Credentials | None:
        """Return the credentials of the environment: two variables, or a file; None without."""
        environ = os.environ if environ is None else environ
        access_key, secret = environ.get(ENV_ACCESS_KEY, ""), environ.get(ENV_SECRET, "")
        if access_key or secret:
            if not (access_key and secret):
                raise RequestRefused(
                    "credentials_incomplete", f"set both {ENV_ACCESS_KEY} and {ENV_SECRET}"
                )
            return cls(access_key, secret)
        path = environ.get(ENV_FILE, "")
        return cls.from_file(path) if path else None
