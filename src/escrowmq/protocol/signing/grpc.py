"""The ``authorization`` header of RocketMQ's gRPC clients: HMAC-SHA1 over the header with the time.

It covers neither the method nor the message, so whoever reads it can use it for any request until
its time has passed. Clients in Java and Python send their local time marked as UTC. So the time can
be off by any offset of a time zone, and hardly limits a replay. Only TLS protects these clients.
"""

from __future__ import annotations

import calendar
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.signing.keys import is_same, keyed_hash

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEME = "MQv2-HMAC-SHA1"
DATE_TIME = "x-mq-date-time"
SLACK_MS = 5 * 60_000
"""How far a client's clock may be off."""
OFFSET_STEP_MS = 15 * 60_000
OFFSET_MS_MAX = 14 * 3_600_000
"""Time zones differ from UTC by up to 14 hours, in steps of a quarter of an hour."""
HEADER_CHARS_MAX = 1_024
DATE_CHARS = 16

_PARTS = re.compile(
    r"MQv2-HMAC-SHA1\s+Credential=([^,\s]{1,600})\s*,\s*SignedHeaders=([A-Za-z-]{1,64})\s*,"
    r"\s*Signature=([0-9A-Fa-f]{40})\s*\Z"
)
_DATE = re.compile(r"(\d{4})(\d{2})(\d{2})T(\d{2})(\d{2})(\d{2})Z\Z", re.ASCII)


class Authorization(NamedTuple):
    """What an ``authorization`` header says."""

    access_key: str
    signature: bytes


@lru_cache(maxsize=4_096)
def read_authorization(header: str) -> Authorization:
    """Return the parts of a header; refuse another scheme, or a header with other signed fields."""
    found = _PARTS.match(header) if len(header) <= HEADER_CHARS_MAX else None
    if found is None or found[2].lower() != DATE_TIME:
        raise RequestRefused(
            "credentials_malformed",
            f"write authorization as `{SCHEME} Credential=KEY, SignedHeaders={DATE_TIME},"
            " Signature=HEX`",
            chars=len(header),
        )
    # A client may name a region and a service behind the key.
    return Authorization(found[1].partition("/")[0], found[3].lower().encode())


def sign(key: bytes, date_time: str) -> str:
    """Return the signature of a request with this time, in hexadecimal digits."""
    return keyed_hash(key, date_time.encode(), "sha1").hex()


def header_of(access_key: str, key: bytes, date_time: str) -> str:
    """Return the header of a client."""
    signature = sign(key, date_time)
    return f"{SCHEME} Credential={access_key}, SignedHeaders={DATE_TIME}, Signature={signature}"


def is_signed(keys: Iterable[bytes], told: Authorization, date_time: str) -> bool:
    """Whether one of these keys signed this time."""
    found = False
    for key in keys:
        found |= is_same(sign(key, date_time).encode(), told.signature)
    return found


def fresh_until_ms(date_time: str, now_ms: int) -> int:
    """Return until when a time is accepted; refuse one that is not accepted now."""
    # Anyone can send a text, so only those of the right length are kept.
    at_ms = _read_date(date_time) if len(date_time) == DATE_CHARS else None
    if at_ms is None:
        raise RequestRefused(
            "credentials_malformed", f"write {DATE_TIME} as 20260131T235959Z", chars=len(date_time)
        )
    ahead_ms = at_ms - now_ms
    steps = round(ahead_ms / OFFSET_STEP_MS)
    off_ms = ahead_ms - steps * OFFSET_STEP_MS
    if abs(steps) * OFFSET_STEP_MS > OFFSET_MS_MAX or abs(off_ms) > SLACK_MS:
        raise RequestRefused(
            "request_too_old",
            "set the client's clock: its time may differ by 5 minutes, besides its time zone",
            date_time=date_time,
        )
    return now_ms + SLACK_MS + off_ms


@lru_cache(maxsize=4_096)
def _read_date(text: str) -> int | None:
    found = _DATE.match(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups())
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):  # noqa: PLR2004 - a calendar's numbers
        return None
    return calendar.timegm((year, month, day, hour, minute, second)) * 1_000
