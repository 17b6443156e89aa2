"""How the sys flag of a message names the compression of its body, and what was compressed."""

from __future__ import annotations

import zlib

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.limits import BODY_BYTES_MAX
from escrowmq.protocol.message.stored_message import SYS_COMPRESSED, StoredMessage

#: Codes of zlib. Clients before 5.0 write 0.
ZLIB_TYPES = (0, 3)
#: A body of a few bytes could otherwise expand to gigabytes.
INFLATED_BYTES_MAX = 4 * BODY_BYTES_MAX


def compression_type(sys_flag: int) -> int:
    """Return the code of the compression; it means nothing unless the body is compressed."""
    return sys_flag >> 8 & 0x7


def inflated(stored: StoredMessage, bytes_max: int = INFLATED_BYTES_MAX) -> bytes:
    """Return the body of a message, not compressed and of at most this many bytes."""
    if not stored.sys_flag & SYS_COMPRESSED:
        return stored.body
    kind = compression_type(stored.sys_flag)
    if kind not in ZLIB_TYPES:
        raise ProtocolViolation("compression_unknown", "compress bodies with zlib", kind=kind)
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(stored.body, bytes_max)
    except zlib.error as error:
        raise ProtocolViolation("body_not_compressed", str(error), topic=stored.topic) from None
    if not inflater.eof:
        raise ProtocolViolation(
            "body_not_compressed",
            f"the body is cut short, or expands to more than {bytes_max} bytes",
            topic=stored.topic,
        )
    return body
