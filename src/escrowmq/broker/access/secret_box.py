"""Encrypts the secrets of users.

Signed requests are checked with the secret itself, so a hash would not do. The log, the checkpoint
and backups hold secrets encrypted with AES-256 in GCM mode, under one key that is in none of them.
A sealed secret is bound to its user's name: no other user can be given it.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.model.errors import RequestRefused, StoreCorrupt, StoreUnusable
from escrowmq.model.secret import Secret, read_private
from escrowmq.model.users import SealedSecret

if TYPE_CHECKING:
    from collections.abc import Mapping

ENV_KEY = "ESCROWMQ_ACCESS_KEY"
KEY_BYTES = 32
KEY_FILE_BYTES_MAX = 1_024
NONCE_BYTES = 12
#: Characters of a given secret. RocketMQ's tools ask for at least 6; ours makes 43.
SECRET_CHARS_MIN = 8
SECRET_CHARS_MAX = 255
_MADE_BYTES = 32
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_MAKE_ONE = "make one with `openssl rand -hex 32`"


class SecretBox:
    """Seals and opens secrets under one key."""

    def __init__(self, key: bytes) -> None:
        # Imported here, because it takes a moment, and a broker without users needs none of it.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        assert len(key) == KEY_BYTES
        self._cipher = AESGCM(key)
        #: Names the key in sealed secrets; nobody can compute the key from it.
        self.key_id = hmac.new(key, b"EscrowMQ access key id", sha256).hexdigest()[:16]

    def seal(self, secret: Secret, user: str) -> SealedSecret:
        """Encrypt a secret of this user."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, secret.reveal().encode(), _bound_to(user))
        return SealedSecret(self.key_id, nonce, sealed)

    def unseal(self, sealed: SealedSecret, user: str) -> Secret:
        """Decrypt a secret of this user."""
        from cryptography.exceptions import InvalidTag

        if sealed.key_id != self.key_id:
            raise StoreUnusable(
                "access_key_wrong",
                f"another key sealed the secrets of users: name its file as access.key_file, or set"
                f" {ENV_KEY}",
                user=user,
                sealed_under=sealed.key_id,
                key_given=self.key_id,
            )
        try:
            text = self._cipher.decrypt(sealed.nonce, sealed.ciphertext, _bound_to(user))
            return Secret(text.decode())
        except (InvalidTag, ValueError):
            raise StoreCorrupt(
                "user_secret_damaged",
                "the secret's bytes changed, or are another user's; rotate it",
                user=user,
            ) from None


class SecretKeeper:
    """Opens the box with the configured key when a secret is first needed."""

    def __init__(self, key_file: str = "", environ: Mapping[str, str] = os.environ) -> None:
        self._key_file = key_file
        self._environ = environ
        self._box: SecretBox | None = None

    @property
    def box(self) -> SecretBox:
        """The box; refused if there is no key."""
        if self._box is None:
            self._box = open_box(self._key_file, self._environ)
        return self._box


def open_box(key_file: str, environ: Mapping[str, str]) -> SecretBox:
    """Return the box of the configured key: from the file, or else from the environment."""
    if key_file:
        data = read_private("access_key_unsafe", Path(key_file), bytes_max=KEY_FILE_BYTES_MAX)
        return SecretBox(_key_of(data.decode("ascii", "replace"), key_file))
    text = environ.get(ENV_KEY, "")
    if not text:
        raise RequestRefused(
            "access_key_missing",
            f"the secrets of users need a key: {_MAKE_ONE}, and name its file as access.key_file,"
            f" or set {ENV_KEY}",
        )
    return SecretBox(_key_of(text, ENV_KEY))


def _key_of(text: str, source: str) -> bytes:
    stripped = text.strip()
    if not _HEX.fullmatch(stripped):
        # The error leaves out the text, which may be a key with a slip of the pen.
        raise RequestRefused(
            "access_key_malformed",
            f"a key is 64 hexadecimal digits: {_MAKE_ONE}",
            source=source,
            chars=len(stripped),
        )
    return bytes.fromhex(stripped)


def made_secret() -> Secret:
    """Return a new random secret."""
    return Secret(secrets.token_urlsafe(_MADE_BYTES))


def checked_secret(text: str) -> Secret:
    """Return a given secret; refuse one that is too short, too long, or not printable."""
    if not SECRET_CHARS_MIN <= len(text) <= SECRET_CHARS_MAX or not _PRINTABLE.fullmatch(text):
        raise RequestRefused(
            "secret_malformed",
            f"a secret has {SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} printable ASCII characters and"
            " no space",
            chars=len(text),
        )
    return Secret(text)


def _bound_to(user: str) -> bytes:
    return b"EscrowMQ user secret\x00" + user.encode()
