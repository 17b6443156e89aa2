"""Frames for tests, made by hand and not by the code under test."""

from __future__ import annotations

import json
from typing import Any

FIELDS = {
    "a": "pay-group",
    "b": "orders",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "4",
    "g": "1700000000123",
    "h": "0",
    "i": "UNIQ_KEY\x01U1\x02TRAN_MSG\x01true\x02",
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "broker-a",
}


def frame_of(header: bytes, body: bytes = b"", header_type: int = 0) -> bytes:
    size = 4 + len(header) + len(body)
    return size.to_bytes(4) + (header_type << 24 | len(header)).to_bytes(4) + header + body


def json_header(**changes: object) -> bytes:
    """Return a JSON header like Java's. A change to `...` leaves the key out."""
    header = {
        "code": 310,
        "extFields": FIELDS,
        "flag": 0,
        "language": "JAVA",
        "opaque": 7,
        "serializeTypeCurrentRPC": "JSON",
        "version": 479,
    } | changes
    return json.dumps({key: value for key, value in header.items() if value is not ...}).encode()


def json_frame(body: bytes = b"", **changes: object) -> bytes:
    return frame_of(json_header(**changes), body)


def binary_header(
    code: int = 310,
    *,
    language: int = 0,
    opaque: int = 7,
    flag: int = 0,
    remark: bytes = b"",
    fields: bytes | None = None,
) -> bytes:
    if fields is None:
        fields = b"".join(pair(name.encode(), value.encode()) for name, value in FIELDS.items())
    return b"".join(
        (
            code.to_bytes(2, signed=True),
            language.to_bytes(1, signed=True),
            (479).to_bytes(2),
            opaque.to_bytes(4, signed=True),
            flag.to_bytes(4, signed=True),
            len(remark).to_bytes(4),
            remark,
            len(fields).to_bytes(4),
            fields,
        )
    )


def pair(name: bytes, value: bytes) -> bytes:
    return len(name).to_bytes(2) + name + len(value).to_bytes(4) + value


def binary_frame(body: bytes = b"", **changes: Any) -> bytes:  # noqa: ANN401 - any header field.
    return frame_of(binary_header(**changes), body, header_type=1)
