"""Views of a stored message for consumers, producers and administrators."""

from __future__ import annotations

import msgspec
import pytest

from escrowmq.protocol.message.message_views import (
    HALF_TOPIC,
    back_check_view,
    born_host,
    half_topic_view,
    patch_committed,
    stored_at_ms,
    visible_view,
)
from escrowmq.protocol.message.properties import PROPERTIES_BYTES_MAX, parse_properties
from escrowmq.protocol.message.stored_message import (
    MAGIC_V1,
    SYS_COMMITTED,
    SYS_TRANSACTION_MASK,
    decode,
    encode,
)
from tests.unit.protocol.examples import HOST_PAIRS, ORDER, RETRY_TOPIC, message, record_of


@pytest.mark.parametrize("topic", ["orders", RETRY_TOPIC])
@pytest.mark.parametrize(("born_host", "store_host"), HOST_PAIRS)
def test_a_committed_half_differs_in_four_fields_only(
    born_host: bytes, store_host: bytes, topic: str
) -> None:
    record = record_of(born_host, store_host, topic)
    half = decode(record)
    patched = patch_committed(record, 99, 1_700_000_009_999, 4096)
    assert decode(patched) == msgspec.structs.replace(
        half,
        queue_offset=99,
        sys_flag=half.sys_flag & ~SYS_TRANSACTION_MASK | SYS_COMMITTED,
        stored_at_ms=1_700_000_009_999,
        prepared_offset=4096,
    )
    assert record == record_of(born_host, store_host, topic), "the stored bytes stay as they are"


@pytest.mark.parametrize("topic", ["orders", RETRY_TOPIC])
@pytest.mark.parametrize(("born_host", "store_host"), HOST_PAIRS)
def test_administrators_see_an_undecided_half_on_the_half_topic(
    born_host: bytes, store_host: bytes, topic: str
) -> None:
    record = record_of(born_host, store_host, topic)
    half = decode(record)
    view = half_topic_view(record, 7)
    assert decode(view) == msgspec.structs.replace(
        half,
        size=len(view),
        magic=MAGIC_V1,
        topic=HALF_TOPIC,
        queue_id=0,
        queue_offset=7,
        sys_flag=half.sys_flag & ~SYS_TRANSACTION_MASK,
    )


@pytest.mark.parametrize(("born_host", "store_host"), HOST_PAIRS)
def test_a_committed_half_is_shown_as_committed_and_prepared_at_its_own_offset(
    born_host: bytes, store_host: bytes
) -> None:
    record = record_of(born_host, store_host)
    shown = visible_view(record, 99, 1_700_000_009_999)
    assert shown == patch_committed(record, 99, 1_700_000_009_999, decode(record).log_offset)


@pytest.mark.parametrize(("born_host", "store_host"), HOST_PAIRS)
def test_an_ordinary_message_is_shown_as_it_was_written(
    born_host: bytes, store_host: bytes
) -> None:
    record = encode(message(born_host=born_host), 12, 4096, 1_700_000_000_456, store_host)
    assert visible_view(record, 12, 1_700_000_000_456) is record


@pytest.mark.parametrize(
    ("queue_offset", "visible_at_ms"), [(13, 1_700_000_000_456), (12, 1_700_000_009_999)]
)
@pytest.mark.parametrize(("born_host", "store_host"), HOST_PAIRS)
def test_a_scheduled_message_shows_its_place_and_when_it_became_visible(
    born_host: bytes, store_host: bytes, queue_offset: int, visible_at_ms: int
) -> None:
    record = encode(message(born_host=born_host), 12, 4096, 1_700_000_000_456, store_host)
    assert decode(visible_view(record, queue_offset, visible_at_ms)) == msgspec.structs.replace(
        decode(record), queue_offset=queue_offset, stored_at_ms=visible_at_ms
    )


@pytest.mark.parametrize(("born_host", "store_host"), HOST_PAIRS)
def test_the_store_time_is_read_whatever_the_hosts(born_host: bytes, store_host: bytes) -> None:
    assert stored_at_ms(record_of(born_host, store_host)) == 1_700_000_000_456
    assert stored_at_ms(encode(ORDER, 0, 0, 7, store_host)) == 7


@pytest.mark.parametrize("topic", ["orders", RETRY_TOPIC, "t" * 200])
@pytest.mark.parametrize(("sender", "store_host"), HOST_PAIRS)
def test_a_producer_is_asked_about_its_half_with_the_number_of_the_check(
    sender: bytes, store_host: bytes, topic: str
) -> None:
    record = record_of(sender, store_host, topic)
    half = decode(record)
    view = back_check_view(record, "pay", 3)
    seen = decode(view)
    assert seen == msgspec.structs.replace(
        half,
        size=len(view),
        sys_flag=half.sys_flag & ~SYS_TRANSACTION_MASK,
        properties=seen.properties,
    )
    told = {"TRANSACTION_CHECK_TIMES": "3", "PGROUP": "pay"}
    assert parse_properties(seen.properties) == parse_properties(half.properties) | told
    assert born_host(record) == sender


def test_a_check_says_of_the_group_what_the_half_says() -> None:
    sent = message(properties=b"PGROUP\x01mine")
    view = back_check_view(encode(sent, 0, 0, 0, bytes(8)), "pay", 1)
    assert decode(view).properties == b"PGROUP\x01mine\x02TRANSACTION_CHECK_TIMES\x011\x02"


def test_a_check_of_a_half_without_room_for_a_number_goes_without() -> None:
    properties = b"PGROUP\x01%b\x02" % bytes(b"x" * (PROPERTIES_BYTES_MAX - 8))
    record = encode(message(properties=properties), 0, 0, 0, bytes(8))
    assert decode(back_check_view(record, "pay", 1)).properties == properties
