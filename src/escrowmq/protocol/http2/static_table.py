"""The static table of HPACK (RFC 7541, appendix A)."""

from __future__ import annotations

_LINES = """\
:authority
:method GET
:method POST
:path /
:path /index.html
:scheme http
:scheme https
:status 200
:status 204
:status 206
:status 304
:status 400
:status 404
:status 500
accept-charset
accept-encoding gzip, deflate
accept-language
accept-ranges
accept
access-control-allow-origin
age
allow
authorization
cache-control
content-disposition
content-encoding
content-language
content-length
content-location
content-range
content-type
cookie
date
etag
expect
expires
from
host
if-match
if-modified-since
if-none-match
if-range
if-unmodified-since
last-modified
link
location
max-forwards
proxy-authenticate
proxy-authorization
range
referer
refresh
retry-after
server
set-cookie
strict-transport-security
transfer-encoding
user-agent
vary
via
www-authenticate"""

HeaderField = tuple[bytes, bytes]
"""Name and value."""


def _entries() -> tuple[HeaderField, ...]:
    parts = (line.encode().partition(b" ") for line in _LINES.splitlines())
    return tuple((name, value) for name, _, value in parts)


STATIC_TABLE: tuple[HeaderField, ...] = _entries()
"""Index 1 is the first entry."""
