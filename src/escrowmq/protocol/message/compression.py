"""How the sys flag of a message names the compression of its body."""

from __future__ import annotations

from escrowmq.protocol.message.limits import BODY_BYTES_MAX

#: Codes of zlib. Clients before 5.0 write 0.
ZLIB_TYPES = (0, 3)
#: A body of a few bytes could otherwise expand to gigabytes.
INFLATED_BYTES_MAX = 4 * BODY_BYTES_MAX


def compression_type(sys_flag: int) -> int:
    """Return the code of the compression; it means nothing unless the body is compressed."""
    return sys_flag >> 8 & 0x7
