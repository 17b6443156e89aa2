"""Signatures of EscrowMQ's own requests: HMAC-SHA256 over everything that a request says.

The content has the request code, the name, the length and the value of each field, and the body. So
a signed request means one thing only. Each request has a time and a nonce: the number of a session
that its client made up, and a count that rises by each request. The broker keeps the last count of
each session for as long as it would accept the time of an old request (``replays.py``).
"""

from __future__ import annotations

import hmac
import re
from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.signing.keys import is_same
from escrowmq.protocol.signing.remoting import SIGNATURE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NONCE = "escrowNonce"
TIME = "escrowTime"
SLACK_MS = 5 * 60_000
"""How far the clocks of client and broker may differ."""
SESSION_BYTES = 16

_NONCE = re.compile(r"([0-9a-f]{32})-([1-9][0-9]{0,17})\Z", re.ASCII)
_TIME = re.compile(r"[1-9][0-9]{0,17}\Z", re.ASCII)
_DOMAIN = b"EscrowMQ request 1"


class Nonce(NamedTuple):
    """What a request says against its repetition."""

    session: str
    number: int
    at_ms: int


def content_of(code: int, fields: Mapping[str, str]) -> bytes:
    """Return what a client signs before the body."""
    parts = [_DOMAIN, b"%d" % code]
    for name in sorted(fields):
        if name != SIGNATURE:
            value = fields[name].encode("utf-8", "surrogatepass")
            parts.append(b"%b=%d:%b" % (name.encode("utf-8", "surrogatepass"), len(value), value))
    parts.append(b"")
    return b"\n".join(parts)


def sign(key: bytes, code: int, fields: Mapping[str, str], body: bytes | memoryview) -> str:
    """Return the signature of a request whose fields have access key, nonce and time already."""
    signed = hmac.new(key, content_of(code, fields), sha256)
    signed.update(body)
    return b64encode(signed.digest()).decode()


def is_signed(keys: Iterable[bytes], code: int, fields: Mapping[str, str], body: bytes) -> bool:
    """Whether one of these keys signed a request."""
    told = fields.get(SIGNATURE, "").encode("utf-8", "surrogatepass")
    found = False
    for key in keys:
        found |= is_same(sign(key, code, fields, body).encode(), told)
    return found


def nonce_of(session: str, count: int) -> str:
    """Return the text of a nonce."""
    return f"{session}-{count}"


def read_nonce(fields: Mapping[str, str]) -> Nonce:
    """Return nonce and time of a request; refuse one without them."""
    found = _NONCE.match(fields.get(NONCE, ""))
    time = fields.get(TIME, "")
    if found is None or not _TIME.match(time):
        raise RequestRefused(
            "credentials_malformed",
            f"a native request has a {TIME} and a {NONCE}: use a client of this release",
        )
    return Nonce(found[1], int(found[2]), int(time))
