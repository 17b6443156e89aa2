"""Facts that the broker reads from the properties of a sent message."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.properties import format_properties, index_facts
from escrowmq.protocol.message.sent_facts import SentFacts, read_sent_facts

NOTHING = SentFacts(
    is_half=False,
    producer_group="",
    unique_key="",
    keys=(),
    tags="",
    check_after_ms=None,
    delay_level=0,
    deliver_after_ms=0,
    deliver_at_ms=0,
)


def facts(**properties: str) -> SentFacts:
    return read_sent_facts(format_properties(properties))


def expected(**changes: object) -> SentFacts:
    return msgspec.structs.replace(NOTHING, **changes)


def test_a_message_may_have_no_properties() -> None:
    assert read_sent_facts(b"") == NOTHING
    assert facts(buyer="Zoë", WAIT="true") == NOTHING


def test_a_half_message_is_read_in_one_go() -> None:
    assert facts(
        KEYS="order-1 order-2",
        UNIQ_KEY="U1",
        TRAN_MSG="true",
        PGROUP="pay-group",
        TAGS="TagA",
        CHECK_IMMUNITY_TIME_IN_SECONDS="60",
        DELAY="3",
    ) == SentFacts(
        is_half=True,
        producer_group="pay-group",
        unique_key="U1",
        keys=("order-1", "order-2"),
        tags="TagA",
        check_after_ms=60_000,
        delay_level=3,
        deliver_after_ms=0,
        deliver_at_ms=0,
    )


@pytest.mark.parametrize(
    ("value", "is_half"),
    [
        ("true", True),
        ("TRUE", True),
        ("True", True),
        ("false", False),
        ("1", False),
        ("yes", False),
    ],
)
def test_only_true_makes_a_half_message(value: str, is_half: bool) -> None:  # noqa: FBT001
    assert facts(TRAN_MSG=value).is_half is is_half


@pytest.mark.parametrize(
    ("seconds", "check_after_ms"),
    [
        ("7", 7_000),
        ("0", 0),
        ("3600", 3_600_000),
        # The policy's time applies if the value is negative or not a valid number.
        ("-1", None),
        ("100.5", None),
        ("soon", None),
        ("1" * 20, None),
        ("٣", None),
    ],
)
def test_the_first_back_check_may_be_put_off(seconds: str, check_after_ms: int | None) -> None:
    assert facts(CHECK_IMMUNITY_TIME_IN_SECONDS=seconds).check_after_ms == check_after_ms


@pytest.mark.parametrize(
    ("properties", "waits"),
    [
        ({"DELAY": "1"}, {"delay_level": 1}),
        ({"DELAY": "99"}, {"delay_level": 99}),
        ({"DELAY": "0"}, {}),
        ({"DELAY": "-3"}, {}),
        ({"TIMER_DELAY_SEC": "5"}, {"deliver_after_ms": 5_000}),
        ({"TIMER_DELAY_MS": "5"}, {"deliver_after_ms": 5}),
        ({"TIMER_DELIVER_MS": "1700000000000"}, {"deliver_at_ms": 1_700_000_000_000}),
        # A negative time means no delay.
        ({"TIMER_DELAY_SEC": "-5"}, {}),
        ({"TIMER_DELAY_MS": "-5"}, {}),
        ({"TIMER_DELIVER_MS": "-5"}, {}),
        # Precedence: DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS.
        (
            {"DELAY": "2", "TIMER_DELAY_SEC": "9", "TIMER_DELIVER_MS": "9"},
            {"delay_level": 2},
        ),
        (
            {"TIMER_DELIVER_MS": "9", "TIMER_DELAY_MS": "7", "TIMER_DELAY_SEC": "1"},
            {"deliver_after_ms": 1_000},
        ),
        ({"TIMER_DELIVER_MS": "9", "TIMER_DELAY_MS": "7"}, {"deliver_after_ms": 7}),
        ({"DELAY": "0", "TIMER_DELAY_MS": "7"}, {"deliver_after_ms": 7}),
        # Names and values that only look similar.
        ({"MY_DELAY": "5", "note": "DELAY"}, {}),
    ],
)
def test_a_message_may_wait(properties: dict[str, str], waits: dict[str, int]) -> None:
    assert facts(**properties) == expected(**waits)


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
@pytest.mark.parametrize("value", ["soon", "1.5", "1_0", " 1", "٣", "9" * 20])
def test_a_delay_that_is_no_number_is_a_violation(name: str, value: str) -> None:
    with pytest.raises(ProtocolViolation) as violation:
        facts(**{name: value})
    assert violation.value.code == "properties_malformed"
    assert violation.value.fields == {"name": name, "value": value}


@given(
    st.lists(
        st.sampled_from(
            ["\x01", "\x02", "TAGS", "KEYS", "UNIQ_KEY", "DELAY", "TIMER_DELAY_MS", "X", " ", "5"]
        ),
        max_size=24,
    ).map(lambda parts: "".join(parts).encode())
    | st.binary(max_size=40)
)
def test_any_bytes_are_properties_or_a_violation(data: bytes) -> None:
    with suppress(ProtocolViolation):
        found = read_sent_facts(data)
        assert (found.unique_key, found.keys, found.tags) == index_facts(data)
