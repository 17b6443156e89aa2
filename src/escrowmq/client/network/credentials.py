"""Credentials of a client, and the signatures that it makes with them."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from escrowmq.model.errors import RequestRefused
from escrowmq.model.private_file import read_private
from escrowmq.model.secret import Secret
from escrowmq.protocol.native.codes import is_native
from escrowmq.protocol.signing import native, remoting

if TYPE_CHECKING:
    from collections.abc import Mapping

ENV_ACCESS_KEY = "ESCROWMQ_ACCESS_KEY_ID"
ENV_SECRET = "ESCROWMQ_SECRET"  # noqa: S105 - a variable's name
ENV_FILE = "ESCROWMQ_CREDENTIALS_FILE"
FILE_BYTES_MAX = 4_096
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
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Credentials | None:
        """Return the credentials of the environment: two variables, or a file; None without."""
        access_key, secret = environ.get(ENV_ACCESS_KEY, ""), environ.get(ENV_SECRET, "")
        if access_key or secret:
            if not (access_key and secret):
                raise RequestRefused(
                    "credentials_incomplete", f"set both {ENV_ACCESS_KEY} and {ENV_SECRET}"
                )
            return cls(access_key, secret)
        path = environ.get(ENV_FILE, "")
        return cls.from_file(path) if path else None


class RequestSigner:
    """Signs the requests of one connection, in the order in which they are sent."""

    def __init__(self, credentials: Credentials) -> None:
        self._access_key = credentials.access_key
        self._key = credentials.key
        self._session = os.urandom(native.SESSION_BYTES).hex()
        self._numbers = count(1)

    def sign(self, code: int, fields: dict[str, str], body: bytes) -> None:
        """Add the fields of a signature to those of a request."""
        fields[remoting.ACCESS_KEY] = self._access_key
        if not is_native(code):
            fields[remoting.SIGNATURE] = remoting.sign(self._key, fields, body)
            return
        fields[native.NONCE] = native.nonce_of(self._session, next(self._numbers))
        fields[native.TIME] = str(time.time_ns() // 1_000_000)
        fields[remoting.SIGNATURE] = native.sign(self._key, code, fields, body)


def signer_of(credentials: Credentials | None) -> RequestSigner | None:
    """Return what signs the requests of a new connection; None without credentials."""
    return None if credentials is None else RequestSigner(credentials)
