"""Limits of a message, checked before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message import limits as module
from escrowmq.protocol.message.limits import BODY_BYTES_MAX, CACHED_TOPICS_MAX, validate
from escrowmq.protocol.message.properties import PROPERTIES_BYTES_MAX
from escrowmq.protocol.message.stored_message import encode
from tests.unit.protocol.examples import IPV4, IPV6, message


@pytest.mark.parametrize(
    "within",
    [
        {"topic": "t"},
        {"topic": "t" * 127},
        {"topic": "%RETRY%" + "g" * 248},
        {"topic": "%DLQ%" + "g" * 250},
        {"topic": "a-b_c%d|e9Z"},
        {"body": b""},
        {"body": bytes(BODY_BYTES_MAX)},
        {"properties": bytes(PROPERTIES_BYTES_MAX)},
        {"queue_id": 0},
        {"queue_id": 2**31 - 1},
        {"born_host": IPV4},
        {"born_host": IPV6},
        *({field: -(2**31)} for field in ("flag", "sys_flag", "reconsume_times")),
        *({field: 2**31 - 1} for field in ("flag", "sys_flag", "reconsume_times")),
        {"born_at_ms": -(2**63)},
        {"born_at_ms": 2**63 - 1},
        {"deliver_after_ms": 2**63 - 1},
        {"deliver_at_ms": 2**63 - 1},
    ],
    ids=lambda within: next(iter(within)),
)
def test_a_message_within_the_limits_is_taken_and_can_be_written(within: dict[str, Any]) -> None:
    for _ in range(2):  # The second time, its topic is cached.
        validate(message(**within))
    encode(message(**within), 0, 0, 0, IPV6)


@pytest.mark.parametrize(
    ("beyond", "code", "facts"),
    [
        ({"topic": ""}, "topic_illegal", {"chars": 0, "chars_max": 127}),
        ({"topic": "t" * 128}, "topic_illegal", {"chars": 128, "chars_max": 127}),
        ({"topic": "%RETRY%" + "g" * 249}, "topic_illegal", {"chars": 256, "chars_max": 255}),
        ({"topic": "%DLQ%" + "g" * 251}, "topic_illegal", {"chars": 256, "chars_max": 255}),
        ({"topic": "RETRY" + "g" * 123}, "topic_illegal", {"chars": 128, "chars_max": 127}),
        ({"topic": "a.b"}, "topic_illegal", {"topic": "a.b"}),
        ({"topic": "a b"}, "topic_illegal", {"topic": "a b"}),
        ({"topic": "orders\n"}, "topic_illegal", {"topic": "orders\n"}),
        ({"topic": "été"}, "topic_illegal", {"topic": "été"}),
        ({"topic": "\u0661"}, "topic_illegal", {"topic": "\u0661"}),  # A digit, but not ASCII.
        (
            {"body": bytes(4_194_305)},
            "body_too_large",
            {"bytes": 4_194_305, "bytes_max": 4_194_304},
        ),
        (
            {"properties": bytes(32_768)},
            "properties_too_large",
            {"bytes": 32_768, "bytes_max": 32_767},
        ),
        ({"queue_id": -1}, "queue_id_illegal", {"queue_id": -1, "max": 2**31 - 1}),
        ({"queue_id": 2**31}, "queue_id_illegal", {"queue_id": 2**31, "max": 2**31 - 1}),
        *(
            ({"born_host": bytes(size)}, "born_host_illegal", {"born_host": bytes(size)})
            for size in (0, 7, 9, 19, 21)
        ),
        *(
            ({field: value}, "number_out_of_range", {"field": field, "value": value})
            for field in ("flag", "sys_flag", "reconsume_times")
            for value in (-(2**31) - 1, 2**31)
        ),
        *(
            ({field: value}, "number_out_of_range", {"field": field, "value": value})
            for field, value in (
                ("born_at_ms", -(2**63) - 1),
                ("born_at_ms", 2**63),
                ("deliver_after_ms", -1),
                ("deliver_after_ms", 2**63),
                ("deliver_at_ms", -1),
                ("deliver_at_ms", 2**63),
            )
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_message_beyond_a_limit_is_refused_with_limit_and_value(
    beyond: dict[str, Any], code: str, facts: dict[str, Any]
) -> None:
    for _ in range(2):  # A refused topic is not cached as a valid one.
        with pytest.raises(RequestRefused) as refused:
            validate(message(**beyond))
        assert refused.value.code == code
        assert facts.items() <= refused.value.fields.items()


def test_an_endless_topic_is_not_repeated_in_the_refusal() -> None:
    with pytest.raises(RequestRefused) as refused:
        validate(message(topic="t" * 1_000_000))
    assert len(str(refused.value)) < 300


def test_the_cache_of_legal_topics_is_bounded() -> None:
    for number in range(CACHED_TOPICS_MAX + 1):
        validate(message(topic=f"topic-{number}"))
    assert 0 < len(module._legal_topics) <= CACHED_TOPICS_MAX
