"""Facts that the broker reads from a sent message's properties, in one pass.

The rules are RocketMQ's. A delay level takes precedence over a timer. Among timers, a delay in
seconds takes precedence over one in milliseconds, and both over an instant. The broker ignores a
time for the first back-check that is not a number.
"""

from __future__ import annotations

import re

import msgspec

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.properties import (
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
#: Every property name of a delay contains one of these. Delays are rare.
_MAY_WAIT = (DELAY.encode(), TIMER_DELIVER_MS.encode())


class SentFacts(msgspec.Struct, frozen=True, gc=False):
    """Facts from a message's properties. Empty text, 0 and None mean that a property is absent."""

    is_half: bool
    producer_group: str
    unique_key: str
    keys: tuple[str, ...]
    tags: str
    #: Age before the first back-check, if the sender set it.
    check_after_ms: int | None
    #: The broker's settings define the delay of a level. With a level, both other delays are 0.
    delay_level: int
    #: Counted from now or, for a half message, from its commit.
    deliver_after_ms: int
    deliver_at_ms: int


def read_sent_facts(properties: bytes) -> SentFacts:
    """Read the facts from a message's property string."""
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
    """Return whether a message may have a delay."""
    return _MAY_WAIT[0] in properties or _MAY_WAIT[1] in properties


def _waits(pairs: dict[str, str]) -> tuple[int, int, int]:
    """Return delay level, delay and instant, of which at most one is not 0."""
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
