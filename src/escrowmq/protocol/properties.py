"""A message's properties: ``name 0x01 value 0x02``, repeated, in UTF-8.

Read as RocketMQ reads it: the last 0x02 may be missing, the first 0x01 of a pair ends its name,
pairs with an empty name or value do not count, and of several pairs with one name the last holds.
"""

from __future__ import annotations

from functools import lru_cache

from escrowmq.model.errors import ProtocolViolation

UNIQ_KEY = "UNIQ_KEY"
KEYS = "KEYS"
TAGS = "TAGS"

NAME_END = "\x01"
PAIR_END = "\x02"
#: Between two keys in the value of KEYS.
KEY_SEPARATOR = " "


def index_facts(properties: bytes) -> tuple[str, tuple[str, ...], str]:
    """Unique key, keys and tags."""
    try:
        # With the leading 0x02 each pair starts alike, so a name cannot match another one's tail.
        text = "\x02" + properties.decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(error) from None
    keys = _value(text, "\x02KEYS\x01")
    return (
        _value(text, "\x02UNIQ_KEY\x01"),
        tuple([key for key in keys.split(" ") if key]) if keys else (),
        _value(text, "\x02TAGS\x01"),
    )


def _value(text: str, start: str) -> str:
    at = text.rfind(start)
    while at >= 0:
        value_at = at + len(start)
        end = text.find("\x02", value_at)
        value = text[value_at:] if end < 0 else text[value_at:end]
        if value:
            return value
        at = text.rfind(start, 0, at)
    return ""


@lru_cache(maxsize=4_096)
def tags_code(tags: str) -> int:
    """Java's ``String.hashCode``, by which queues are filtered: signed 32 bits, 0 for no tag."""
    code = 0
    # Java counts UTF-16 units, so one character beyond the BMP counts as two.
    units = tags.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFF_FFFF
    return code - ((code & 0x8000_0000) << 1)


def _not_utf8(error: UnicodeDecodeError) -> ProtocolViolation:
    return ProtocolViolation("properties_malformed", "not UTF-8", at=error.start)
