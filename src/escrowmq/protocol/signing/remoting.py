"""Signatures of RocketMQ's remoting clients: HMAC-SHA1 over values and body.

The content is the values of all extension fields but the signature, in the order of their names,
and the body behind them. It has neither the names, nor the request code, nor a time: whoever reads
a signed frame can send it again, and as another request. Only TLS protects these clients.
"""

from __future__ import annotations

from base64 import b64encode
from functools import lru_cache
from typing import TYPE_CHECKING

from escrowmq.protocol.signing.keys import is_same, keyed_hash

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
ORDERS_MAX = 1_024
"""Orders of names that are kept: one for each kind of request of each client's release."""
NAMES_MAX = 64
NAMES_CHARS_MAX = 1_024
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""Clients up to 4.9.3 add this field behind the signature's back, so it is signed or it is not."""


def content_of(
    fields: Mapping[str, str], body: bytes, *, without: tuple[str, ...] = (SIGNATURE,)
) -> bytes:
    """Return what a client signs."""
    names = tuple(fields)
    # Anyone can send names, so only short ones are kept.
    is_usual = len(names) <= NAMES_MAX and sum(map(len, names)) <= NAMES_CHARS_MAX
    order = _kept_order(names, without) if is_usual else _in_order(names, without)
    values = "".join([fields[name] for name in order])
    return values.encode("utf-8", "surrogatepass") + body


def _in_order(names: tuple[str, ...], without: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in the order in which their values are signed."""
    return tuple(sorted(name for name in names if name not in without))


_kept_order = lru_cache(maxsize=ORDERS_MAX)(_in_order)


def sign(key: bytes, fields: Mapping[str, str], body: bytes) -> str:
    """Return the signature of a request whose fields have the access key already."""
    return b64encode(keyed_hash(key, content_of(fields, body), "sha1")).decode()


def is_signed(keys: Iterable[bytes], fields: Mapping[str, str], body: bytes) -> bool:
    """Whether one of these keys signed a request."""
    told = fields.get(SIGNATURE, "").encode("utf-8", "surrogatepass")
    contents = [content_of(fields, body)]
    if UNIQUE_KEY_QUERY in fields:
        contents.append(content_of(fields, body, without=(SIGNATURE, UNIQUE_KEY_QUERY)))
    # Compares with every key, so that the time does not tell which one fits.
    found = False
    for key in keys:
        for content in contents:
            found |= is_same(b64encode(keyed_hash(key, content, "sha1")), told)
    return found
