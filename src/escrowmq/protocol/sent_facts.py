"""What a broker must know of a message's properties when it is sent.

Everything is found in one pass.  The rules are RocketMQ's: a delay level goes before a timer, of
the timers seconds go before milliseconds and both before an instant, and a time for the first
back-check that is no number does not count.
"""

from __future__ import annotations

import re

import msgspec

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    DELAY,
    KEYS,
    PGROUP,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
    parse_properties,
    split_keys,
)

_SECOND_MS = 1_000
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
#: Delays are rare, and all their names have one of these in them.
_MAY_WAIT = (b"DELAY", b"TIMER_DELIVER_MS")


class SentFacts(msgspec.Struct, frozen=True, gc=False):
    """Empty text, 0 and None mean that the property is not there."""

    is_half: bool
    producer_group: str
    unique_key: str
    keys: tuple[str, ...]
    tags: str
    #: Age before the first back-check, if the sender chose it.
    check_after_ms: int | None
    #: The broker knows how long a level waits; with one there is no other delay.
    delay_level: int
    #: Counted from now, or from the commit of a half message.
    deliver_after_ms: int
    deliver_at_ms: int


def read_sent_facts(properties: bytes) -> SentFacts:
    """Read them from a message's property string."""
    pairs = parse_properties(properties)
    value_of = pairs.get
    keys = value_of(KEYS)
    delay_level, deliver_after_ms, deliver_at_ms = 0, 0, 0
    if may_wait(properties):
        delay_level, deliver_after_ms, deliver_at_ms = _waits(pairs)
    return SentFacts(
        value_of(TRAN_MSG, "").lower() == "true",
        value_of(PGROUP, ""),
        value_of(UNIQ_KEY, ""),
        split_keys(keys) if keys is not None else (),
        value_of(TAGS, ""),
        _check_after_ms(value_of(CHECK_IMMUNITY_TIME_IN_SECONDS)),
        delay_level,
        deliver_after_ms,
        deliver_at_ms,
    )


def may_wait(properties: bytes) -> bool:
    """Whether a message may have a delay."""
    return _MAY_WAIT[0] in properties or _MAY_WAIT[1] in properties


def _waits(pairs: dict[str, str]) -> tuple[int, int, int]:
    """Delay level, delay and instant; at most one of them is not 0."""
    delay_level = _number(pairs, DELAY)
    if delay_level > 0:
        return delay_level, 0, 0
    if TIMER_DELAY_SEC in pairs:
        return 0, max(_number(pairs, TIMER_DELAY_SEC) * _SECOND_MS, 0), 0
    if TIMER_DELAY_MS in pairs:
        return 0, max(_number(pairs, TIMER_DELAY_MS), 0), 0
    return 0, 0, max(_number(pairs, TIMER_DELIVER_MS), 0)


def _check_after_ms(seconds: str | None) -> int | None:
    if seconds is None or not _NUMBER.fullmatch(seconds) or int(seconds) < 0:
        return None
    return int(seconds) * _SECOND_MS


def _number(pairs: dict[str, str], name: str) -> int:
    value = pairs.get(name, "0")
    if not _NUMBER.fullmatch(value):
        raise ProtocolViolation("properties_malformed", "not a number", name=name, value=value[:64])
    return int(value)
