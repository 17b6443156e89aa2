"""What all schemes share: keyed hashes, their comparison, and the credentials that they need."""

from __future__ import annotations

import hmac

from escrowmq.model.errors import RequestRefused


def refuse_wrong() -> RequestRefused:
    """Return the one error for an unknown access key and for a wrong signature.

    Both have the same text, so that it tells nobody which users exist.
    """
    return RequestRefused("credentials_wrong", "check the access key and the secret of the client")


def refuse_unsigned(what: str) -> RequestRefused:
    """Return the error for a request without credentials."""
    return RequestRefused("not_authenticated", f"access control is on: {what}")


def keyed_hash(key: bytes, content: bytes, digest: str) -> bytes:
    """Return the HMAC of this content."""
    return hmac.digest(key, content, digest)


def is_same(one: bytes, other: bytes) -> bool:
    """Compare in a time that does not tell where two signatures differ."""
    return hmac.compare_digest(one, other)
