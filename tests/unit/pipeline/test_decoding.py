"""Decoding a page gives the same columns as decoding its messages one by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.model.message import SentMessage
from escrowmq.pipeline.source.column_types import TIMESTAMP_MS_MAX
from escrowmq.pipeline.source.stored_records import joined
from escrowmq.protocol.message.ids import offset_message_id
from escrowmq.protocol.message.message_views import stored_at_ms, visible_view
from escrowmq.protocol.message.properties import find_property, parse_properties
from escrowmq.protocol.message.stored_message import (
    SYS_PREPARED,
    SYS_TRANSACTION_MASK,
    decode,
    encode,
)
from tests.unit.pipeline.stored_pages import ALL, PLACE, QUEUE_ID, V4, decoded, page_of

V6 = bytes(range(20))

names = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "__transactionId__", "KEY", "KEYSX", "x", ""])
values = st.text("ab \x01é", max_size=5)
pairs = st.lists(st.tuples(names, values, st.sampled_from(["\x01", ""])), max_size=6)


@st.composite
def property_strings(draw: st.DrawFn) -> bytes:
    text = "\x02".join(f"{name}{between}{value}" for name, value, between in draw(pairs))
    return (text + draw(st.sampled_from(["", "\x02"]))).encode()


@st.composite
def records(draw: st.DrawFn, topic: str = PLACE.topic) -> bytes:
    number = st.integers(-(2**31), 2**31 - 1)
    large = st.integers(-(2**63), 2**63 - 1)
    message = SentMessage(
        topic=topic,
        queue_id=QUEUE_ID,
        body=draw(st.binary(max_size=40)),
        properties=draw(property_strings()),
        flag=draw(number),
        # Clear the compression bit, because random bytes are not valid compressed data.
        sys_flag=draw(number) & ~1,
        born_at_ms=draw(large),
        born_host=draw(st.sampled_from([V4, V6])),
        reconsume_times=draw(number),
    )
    bits = draw(st.sampled_from([0, SYS_PREPARED]))
    store_host = draw(st.sampled_from([V4, V6]))
    log_offset = draw(st.integers(0, 2**63 - 1))
    stated = draw(st.integers(0, 2**40))
    return encode(message, stated, log_offset, draw(large), store_host, bits)


def told(record: bytes, queue_offset: int, visible_at_ms: int) -> dict[str, Any]:
    """Return the expected row, decoded by the code that serves consumers."""
    message = decode(visible_view(record, queue_offset, visible_at_ms))
    properties = message.properties

    def text(name: str) -> str | None:
        found = find_property(properties, name.encode())
        return None if found is None else found.decode()

    return {
        "broker": "broker-a",
        "topic": message.topic,
        "queue_id": QUEUE_ID,
        "queue_offset": message.queue_offset,
        "log_offset": message.log_offset,
        "message_id": offset_message_id(message.store_host, message.log_offset),
        "unique_key": text("UNIQ_KEY"),
        "keys": text("KEYS"),
        "tags": text("TAGS"),
        "body": message.body,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_at": instant(message.born_at_ms),
        "stored_at": instant(stored_at_ms(record)),
        "visible_at": instant(visible_at_ms),
        "reconsume_times": message.reconsume_times,
        "transaction_id": text("__transactionId__"),
        "problem": None,
        "properties": sorted(parse_properties(properties).items()),
        "half_offset": decode(record).queue_offset if is_half(record) else None,
        "born_at_ms": message.born_at_ms,
        "stored_at_ms": stored_at_ms(record),
        "visible_at_ms": visible_at_ms,
    }


def instant(at_ms: int) -> datetime | None:
    """Return the time as a datetime, or None if it is outside the range of pandas."""
    if abs(at_ms) > TIMESTAMP_MS_MAX:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)


def is_half(record: bytes) -> bool:
    return decode(record).sys_flag & SYS_TRANSACTION_MASK == SYS_PREPARED


@settings(deadline=None)
@given(st.lists(records(), max_size=8))
def test_any_messages_are_read_as_one_by_one(found: list[bytes]) -> None:
    expected = [told(record, 5 + at, 1_000 + at) for at, record in enumerate(found)]
    assert decoded(page_of(found)) == expected


@settings(deadline=None)
@given(st.lists(st.lists(records(), max_size=4), min_size=1, max_size=3))
def test_pages_of_several_queues_are_read_together(pages: list[list[bytes]]) -> None:
    alone = [
        page_of(found)._replace(queue_id=np.full(len(found), queue_id, dtype=np.int32))
        for queue_id, found in enumerate(pages)
    ]
    assert decoded(joined(alone)) == [row for page in alone for row in decoded(page)]


@settings(deadline=None)
@given(st.lists(records("t" * 200), min_size=1, max_size=3))
def test_long_topics_have_another_layout(found: list[bytes]) -> None:
    place = PLACE._replace(topic="t" * 200)
    expected = [told(record, 5 + at, 1_000 + at) for at, record in enumerate(found)]
    assert decoded(page_of(found), place=place) == expected


@settings(deadline=None)
@given(st.lists(records(), min_size=1, max_size=4), st.sets(st.sampled_from(ALL), min_size=1))
def test_only_what_is_wanted_comes(found: list[bytes], columns: set[str]) -> None:
    expected = [told(record, 5 + at, 1_000 + at) for at, record in enumerate(found)]
    assert decoded(page_of(found), tuple(columns)) == [
        {name: row[name] for name in columns} for row in expected
    ]
