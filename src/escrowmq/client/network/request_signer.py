"""Signs the requests of a connection with a user's secret."""

from __future__ import annotations

import os
import time
from itertools import count

from escrowmq.model.credentials import Credentials
from escrowmq.protocol.native.codes import is_native
from escrowmq.protocol.signing import native, remoting


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


def chosen_signer(credentials: Credentials | None) -> RequestSigner | None:
    """Return what signs the requests of a new connection: with these or the environment's.

    None if there are no credentials. The environment's file is read for each connection, so that
    a new secret in it needs no restart.
    """
    chosen = credentials if credentials is not None else Credentials.from_environment()
    return None if chosen is None else RequestSigner(chosen)
