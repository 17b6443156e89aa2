"""A message's properties: ``name 0x01 value 0x02``, repeated, in UTF-8.

The parser follows RocketMQ: the last 0x02 may be missing, the first 0x01 of a pair ends its name,
a pair with an empty name or value is ignored, and if a name occurs twice the last value counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, AnyStr

from escrowmq.model.errors import ProtocolViolation, RequestRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

# Set by producers.
UNIQ_KEY = "UNIQ_KEY"
KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
PGROUP = "PGROUP"
TRAN_MSG = "TRAN_MSG"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
DELAY = "DELAY"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
DELAYS = (DELAY, TIMER_DELIVER_MS, TIMER_DELAY_MS, TIMER_DELAY_SEC)
SET_BY_PRODUCERS = (
    UNIQ_KEY,
    KEYS,
    TAGS,
    WAIT,
    PGROUP,
    TRAN_MSG,
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    *DELAYS,
)

# Set by our SDK: the ledger that a back-check looks up, and how long the sender may take.
LEDGER = "ESCROWMQ_LEDGER"
ALLOWED_MS = "ESCROWMQ_ALLOWED_MS"
#: Apache's broker overwrites the transaction id with the message id, so this property keeps it.
OWN_TRANSACTION_ID = "ESCROWMQ_TRANSACTION_ID"

# Set by brokers.
TRANSACTION_ID = "__transactionId__"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
CLUSTER = "CLUSTER"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
POP_CK = "POP_CK"
SET_BY_BROKERS = (
    TRANSACTION_ID,
    REAL_TOPIC,
    REAL_QID,
    TRANSACTION_CHECK_TIMES,
    TRAN_PREPARED_QUEUE_OFFSET,
    CLUSTER,
    MSG_REGION,
    TRACE_ON,
    RETRY_TOPIC,
    ORIGIN_MESSAGE_ID,
    POP_CK,
)


PROPERTIES_BYTES_MAX = 32_767
#: Limits of the cache of tags codes: tags, and characters of a tag. A full cache is cleared.
CACHED_TAGS_MAX = 16_384
CACHED_TAG_CHARS_MAX = 128

_NAME_END = "\x01"
_PAIR_END = "\x02"
_KEY_SEPARATOR = " "

_tags_codes: dict[str, int] = {}


def parse_properties(data: bytes) -> dict[str, str]:
    """Return all valid pairs by name."""
    properties = {}
    for pair in _text(data).split(_PAIR_END):
        name, _, value = pair.partition(_NAME_END)
        if name and value:
            properties[name] = value
    return properties


def format_properties(properties: Mapping[str, str]) -> bytes:
    """Encode pairs; refuse pairs that a reader would not get back unchanged."""
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    # Checking the whole text is faster than checking each pair, and equivalent.
    if (
        text.count(_NAME_END) != len(properties)
        or text.count(_PAIR_END) != len(properties)
        or "\x01\x02" in text
        or "\x02\x01" in text
        or text.startswith(_NAME_END)
    ):
        raise _first_illegal(properties)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise RequestRefused("property_illegal", "not UTF-8", text=ascii(error.object)) from None
    if len(data) > PROPERTIES_BYTES_MAX:
        raise properties_too_large(len(data))
    return data


def half_properties(transaction_id: str, topic: str, queue_id: int) -> bytes:
    """Encode the broker's properties of a half message: its transaction and its target queue.

    Same result as ``format_properties``; the topic must already be validated.
    """
    if not transaction_id or _NAME_END in transaction_id or _PAIR_END in transaction_id:
        raise _first_illegal({TRANSACTION_ID: transaction_id})
    return (
        f"{TRANSACTION_ID}\x01{transaction_id}\x02"
        f"{REAL_TOPIC}\x01{topic}\x02{REAL_QID}\x01{queue_id}\x02"
    ).encode()


def join_properties(properties: bytes, more: bytes) -> bytes:
    """Append pairs. Old clients omit the last separator, so add it if it is missing."""
    if properties and not properties.endswith(b"\x02"):
        return b"%b\x02%b" % (properties, more)
    return properties + more


def find_property(data: bytes, name: bytes) -> bytes | None:
    """Return one value without parsing the other pairs, or None if there is none."""
    return _last_value(b"\x02%b\x02" % data, b"\x02%b\x01" % name, b"\x02") or None


def index_facts(properties: bytes) -> tuple[str, tuple[str, ...], str]:
    """Return the unique key, the keys and the tags, by which messages are indexed."""
    pairs = f"\x02{_text(properties)}\x02"
    keys = _last_value(pairs, "\x02KEYS\x01", _PAIR_END)
    return (
        _last_value(pairs, "\x02UNIQ_KEY\x01", _PAIR_END),
        split_keys(keys),
        _last_value(pairs, "\x02TAGS\x01", _PAIR_END),
    )


def split_keys(keys: str) -> tuple[str, ...]:
    """Split the KEYS property into single keys."""
    if keys and _KEY_SEPARATOR not in keys:
        return (keys,)
    return tuple([key for key in keys.split(_KEY_SEPARATOR) if key])


def tags_code(tags: str) -> int:
    """Return Java's ``String.hashCode`` of the tags, a signed 32-bit number; 0 for no tag.

    Queues are filtered by this code.
    """
    try:
        return _tags_codes[tags]
    except KeyError:
        return _remember_tags_code(tags)


def properties_too_large(size: int) -> RequestRefused:
    """Return the error that states the size and the limit."""
    return RequestRefused("properties_too_large", bytes=size, bytes_max=PROPERTIES_BYTES_MAX)


def _last_value(pairs: AnyStr, start: AnyStr, pair_end: AnyStr) -> AnyStr:
    """Search for ``0x02 name 0x01`` in pairs with 0x02 on both ends; return empty if not found.

    A value cannot contain 0x02, so the search matches neither inside a value nor at the end of a
    longer name.
    """
    at = pairs.rfind(start)
    while at >= 0:
        value_at = at + len(start)
        value = pairs[value_at : pairs.find(pair_end, value_at)]
        if value:
            return value
        at = pairs.rfind(start, 0, at)
    return pairs[:0]


def _remember_tags_code(tags: str) -> int:
    code = 0
    # Java counts in UTF-16 units: a character outside the basic plane counts as two.
    units = tags.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFF_FFFF
    signed = code - ((code & 0x8000_0000) << 1)
    if len(_tags_codes) >= CACHED_TAGS_MAX:
        _tags_codes.clear()
    if len(tags) <= CACHED_TAG_CHARS_MAX:
        _tags_codes[tags] = signed
    return signed


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolViolation("properties_malformed", "not UTF-8", at=error.start) from None


def _first_illegal(properties: Mapping[str, str]) -> RequestRefused:
    name, value = next(
        (name, value)
        for name, value in properties.items()
        if not name or not value or {_NAME_END, _PAIR_END} & {*name, *value}
    )
    return RequestRefused(
        "property_illegal", "empty, or with 0x01 or 0x02 in it", name=name, value=value
    )
