from __future__ import annotations

import os
import zlib
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest

from escrowmq.client.messages.message_ids import new_message_id
from escrowmq.client.messages.messages import Message, message_of, received
from escrowmq.model import message as model
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.message.stored_message import SYS_COMPRESSED, StoredMessage, decode, encode

HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")


def stored(message: Message, *, sys_flag: int = 0, body: bytes | None = None) -> StoredMessage:
    record = encode(
        model.SentMessage(
            topic=message.topic,
            queue_id=2,
            body=message.payload() if body is None else body,
            properties=message.property_bytes(),
            sys_flag=sys_flag,
        ),
        7,
        1_000,
        1_700_000_000_000,
        HOST,
    )
    return decode(record)


def test_a_message_is_received_as_it_was_sent() -> None:
    message = Message(
        topic="orders",
        body="paid",
        key="42",
        keys=("customer-7",),
        tag="paid",
        properties={"shop": "north"},
    )
    got = received(stored(message), "broker-a")
    assert (got.topic, got.body, got.key, got.keys, got.tag) == (
        "orders",
        b"paid",
        "42",
        ("42", "customer-7"),
        "paid",
    )
    assert got.properties["shop"] == "north"
    assert got.message_id == message.message_id
    assert (got.broker_name, got.queue_id, got.queue_offset) == ("broker-a", 2, 7)


class Size(int, Enum):
    LARGE = 3


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        # Brokers split keys only at spaces, so a tab is part of a key.
        ({"key": "a\tb", "keys": ("c\u00a0d",)}, ("a\tb", "c\u00a0d")),
        ({"key": 7, "keys": (8, UUID(int=9))}, ("7", "8", str(UUID(int=9)))),
        ({"key": Size.LARGE}, ("3",)),
    ],
)
def test_keys_come_back_as_they_were_sent(fields: dict[str, Any], keys: tuple[str, ...]) -> None:
    got = received(stored(Message(topic="t", **fields)), "broker-a")
    assert (got.key, got.keys) == (keys[0], keys)


def test_a_body_can_be_filled_in_late() -> None:
    ids: list[int] = []
    message = Message(topic="orders", body=lambda: str(ids[0]))
    ids.append(42)
    assert message.payload() == b"42"


@pytest.mark.parametrize("topic", [None, b"orders", 7])
def test_a_topic_is_text(topic: Any) -> None:  # noqa: ANN401
    with pytest.raises(RequestRefused, match="topic_illegal"):
        message_of(topic, b"", {})


def test_a_delay_travels_as_a_timer() -> None:
    later = parse_properties(Message(topic="t", delay_ms=1_500).property_bytes())
    then = parse_properties(Message(topic="t", deliver_at_ms=99).property_bytes())
    assert later["TIMER_DELAY_MS"] == "1500"
    assert then["TIMER_DELIVER_MS"] == "99"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"key": "a b"}, "key_illegal"),
        ({"keys": "abc"}, "key_illegal"),
        ({"keys": (b"a",)}, "key_illegal"),
        ({"tag": "a||b"}, "tag_illegal"),
        ({"tag": ["a"]}, "tag_illegal"),
        ({"properties": {"UNIQ_KEY": "mine"}}, "property_reserved"),
        ({"properties": {"name": "\x01"}}, "property_illegal"),
    ],
)
def test_a_message_that_would_arrive_changed_is_refused(
    fields: dict[str, object], code: str
) -> None:
    with pytest.raises(RequestRefused, match=code):
        Message(topic="t", **fields).property_bytes()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (42, "body_illegal"),
        (b"x" * (4 * 1024 * 1024 + 1), "body_too_large"),
        ("\ud800", "body_not_encodable"),
    ],
)
def test_an_illegal_body_is_refused(body: object, code: str) -> None:
    with pytest.raises(RequestRefused, match=code):
        Message(topic="t", body=body).payload()


@pytest.mark.parametrize("kind", [0, 3])
def test_a_body_that_another_client_compressed_is_unpacked(kind: int) -> None:
    packed = zlib.compress(b"paid" * 1_000)
    message = stored(Message(topic="t"), sys_flag=SYS_COMPRESSED | kind << 8, body=packed)
    assert received(message, "b").body == b"paid" * 1_000


@pytest.mark.parametrize(
    ("kind", "body", "code"),
    [
        (1, b"", "compression_unknown"),
        (0, b"no zlib", "body_not_compressed"),
        (0, zlib.compress(b"paid")[:-3], "body_not_compressed"),
        # A small compressed body must not expand without a limit.
        (0, zlib.compress(b"\0" * (17 * 1024 * 1024)), "body_not_compressed"),
    ],
)
def test_a_body_that_cannot_be_unpacked_is_named_and_left_as_it_is(
    kind: int, body: bytes, code: str
) -> None:
    message = stored(Message(topic="t"), sys_flag=SYS_COMPRESSED | kind << 8, body=body)
    got = received(message, "b")
    assert got.body == body
    assert got.problem.startswith(code)


def test_a_retry_shows_the_topic_it_was_sent_to() -> None:
    message = stored(Message(topic="t", properties={"RETRY_TOPIC": "orders"}))
    again = msgspec.structs.replace(message, topic="%RETRY%ship", reconsume_times=2)
    got = received(again, "b")
    assert (got.topic, got.queue_topic, got.retries) == ("orders", "%RETRY%ship", 2)


def test_ids_are_never_made_twice() -> None:
    assert len({new_message_id() for _ in range(1_000)}) == 1_000
    assert len(new_message_id()) == 32


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_makes_ids_of_its_own() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, new_message_id().encode())
        os._exit(0)
    theirs = os.read(read, 100).decode()
    os.waitpid(child, 0)
    assert theirs[:20] != new_message_id()[:20]
