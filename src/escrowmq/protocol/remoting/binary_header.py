"""A frame's header in RocketMQ's binary form, for clients that are configured to use it.

All integers are big-endian and signed::

    code 2, language 1, version 2, opaque 4, flag 4,
    remark size 4, remark,
    fields size 4, fields: (name size 2, name, value size 4, value), repeated

An empty remark counts as absent, and so does a field with an empty name or value. The code has 16
bits, so this form cannot carry larger codes such as those for pop.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from struct import error as StructError  # noqa: N812 - struct.error is a class

from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.protocol.remoting.codes import LANGUAGES, OUR_LANGUAGE, OUR_VERSION

CODE_MAX = 2**15 - 1

#: Code, language, version, opaque, flag and the remark's size.
_HEAD = Struct(">hbhiii")
_SIZE = Struct(">i")
_NAME_SIZE = Struct(">h")
_OUR_LANGUAGE = LANGUAGES.index(OUR_LANGUAGE)

BinaryHeader = tuple[int, int, int, int, int, str, dict[str, str]]
"""Code, language, version, opaque, flag, remark, fields."""


def decode_binary_header(header: bytes) -> BinaryHeader:
    """Decode a whole header."""
    try:
        code, language, version, opaque, flag, remark_bytes = _HEAD.unpack_from(header)
        remark_end = _HEAD.size + remark_bytes
        if remark_bytes < 0:
            raise _malformed("negative size of the remark", _HEAD.size)
        (fields_bytes,) = _SIZE.unpack_from(header, remark_end)
        remark = header[_HEAD.size : remark_end].decode()
    except StructError:
        raise _malformed("truncated", len(header)) from None
    except UnicodeDecodeError as error:
        raise _malformed("not UTF-8", _HEAD.size + error.start) from None
    fields_at = remark_end + _SIZE.size
    if not 0 <= fields_bytes <= len(header) - fields_at:
        raise _malformed("fields do not fit", fields_at, size=fields_bytes)
    fields = _decode_fields(header[fields_at : fields_at + fields_bytes])
    return code, language, version, opaque, flag, remark, fields


def encode_binary_header(
    code: int, opaque: int, flag: int, remark: str, fields: Mapping[str, str]
) -> bytes:
    """Encode a header with our language and version."""
    if code > CODE_MAX:
        raise RequestRefused(
            "code_too_large", "not with a binary header", code=code, code_max=CODE_MAX
        )
    remark_raw = remark.encode()
    pairs: list[bytes] = []
    for name, value in fields.items():
        name_raw, value_raw = name.encode(), value.encode()
        pairs += (_NAME_SIZE.pack(len(name_raw)), name_raw, _SIZE.pack(len(value_raw)), value_raw)
    fields_raw = b"".join(pairs)
    return b"".join(
        (
            _HEAD.pack(code, _OUR_LANGUAGE, OUR_VERSION, opaque, flag, len(remark_raw)),
            remark_raw,
            _SIZE.pack(len(fields_raw)),
            fields_raw,
        )
    )


def _decode_fields(data: bytes) -> dict[str, str]:
    fields = {}
    at, end = 0, len(data)
    size_of = int.from_bytes
    try:
        while at < end:
            name_end = at + 2 + (data[at] << 8 | data[at + 1])
            value_at = name_end + 4
            value_end = value_at + size_of(data[name_end:value_at], "big")
            name = data[at + 2 : name_end].decode()
            value = data[value_at:value_end].decode()
            if name and value:
                fields[name] = value
            at = value_end
    except IndexError:
        raise _malformed("fields are truncated", end) from None
    except UnicodeDecodeError:
        raise _malformed("a field is not UTF-8", at) from None
    # Sizes are read as unsigned, so a negative size ends beyond the fields, as a large one does.
    if at != end:
        raise _malformed("fields are truncated", end)
    return fields


def _malformed(message: str, at: int, **fields: object) -> ProtocolViolation:
    return ProtocolViolation("frame_malformed", f"binary header: {message}", at=at, **fields)
