"""A message that breaks a limit is refused before anything is written."""

from __future__ import annotations

import struct

import msgspec
import pytest

from escrowmq.model.message import SentMessage
from escrowmq.protocol.message.ids import pack_host
from escrowmq.protocol.message.stored_message import SYS_PREPARED, SYS_TRANSACTION_MASK
from escrowmq.store.log.encoding import MessageEncoder
from escrowmq.store.log.frames import HEAD_BYTES
from escrowmq.transaction.commands import Append, Command, Prepare
from escrowmq.transaction.records import Placed, Prepared, Stored
from tests.unit.store.helpers import HOST, T0, Driver, message

MIB = 1024 * 1024
GOOD = message("good")

BAD: dict[str, tuple[SentMessage, str]] = {
    "body": (message(bytes(4 * MIB + 1)), "body_too_large"),
    "properties": (
        SentMessage(topic="t", queue_id=0, body=b"", properties=bytes(32_768)),
        "properties",
    ),
    "topic": (message(topic="t" * 128), "topic_illegal"),
    "empty topic": (message(topic=""), "topic_illegal"),
    "topic that leads elsewhere": (message(topic="../../etc"), "topic_illegal"),
    "topic with a dot": (message(topic="."), "topic_illegal"),
    "queue": (message(queue_id=-1), "queue_id_illegal"),
    "queue beyond": (message(queue_id=2**31), "queue_id_illegal"),
    "flag": (message(flag=2**31), "number_out_of_range"),
    "sys flag": (message(sys_flag=2**31), "number_out_of_range"),
    "born": (message(born_at_ms=2**63), "number_out_of_range"),
    "host": (message(born_host=b"1234567"), "born_host_illegal"),
    "reconsumed": (message(reconsume_times=2**31), "number_out_of_range"),
}


def commands(bad: SentMessage) -> list[Command]:
    """Commands with the bad message alone, after a good one, and as a half message."""
    return [
        Append(messages=(bad,)),
        Append(messages=(GOOD, bad)),
        Append(messages=(msgspec.structs.replace(bad, deliver_at_ms=T0 + 5),)),
        Prepare(group="g", transaction_id="t", messages=(bad,)),
        Prepare(group="g", transaction_id="t", messages=(GOOD, bad)),
    ]


@pytest.mark.parametrize("name", BAD)
def test_a_message_that_breaks_a_limit_is_refused_and_leaves_no_trace(name: str) -> None:
    bad, code = BAD[name]
    driver = Driver()
    driver.append(GOOD)
    # The names are known now, so a single half message takes its own code path.
    driver.store.execute(Prepare(group="g", transaction_id="", messages=(GOOD,)), T0)
    driver.store.sync()
    before = driver.picture()
    for command in commands(bad):
        decision = driver.store.execute(command, driver.clock.now_ms())
        assert decision.refused is not None
        assert decision.refused.code.startswith(code)
        assert decision.records == ()
        assert driver.store.log.end == driver.store.log.written
        assert driver.store.dispatcher.is_idle
    driver.store.sync()
    assert driver.picture() == before
    assert driver.crashed().picture() == before


def half(first: int) -> Prepared:
    return Prepared(first, first, 0, "tx", 0, T0, [], Placed([0]))


def test_a_fault_of_ours_is_not_blamed_on_the_sender() -> None:
    encoder = MessageEncoder(HOST)
    with pytest.raises(struct.error):
        encoder.encode((GOOD,), half(2**63), (0, T0))
    with pytest.raises(struct.error):
        encoder.encode_one(GOOD, half(2**63), (0, T0))


def test_one_message_is_encoded_as_one_of_many() -> None:
    encoder = MessageEncoder(HOST)
    for one in (GOOD, message("keyed", keys="a b", tags="paid")):
        frame, together, _ = encoder.encode((one,), half(7), (4_096, T0))
        parts, alone = encoder.encode_one(one, half(7), (4_096, T0))
        assert b"".join(parts) == frame[HEAD_BYTES:]
        assert alone == together
        frame, together, _ = encoder.encode((one,), Stored([7], Placed([0])), (4_096, T0))
        parts, stored = encoder.encode_one(one, Stored([7], Placed([0])), (4_096, T0))
        assert b"".join(parts) == frame[HEAD_BYTES:]
        assert stored == together


def test_the_largest_message_is_stored_and_read_back() -> None:
    driver = Driver()
    largest = SentMessage(
        topic="t" * 127,
        queue_id=2**31 - 1,
        body=bytes(4 * MIB),
        properties=b"a" * 32_767,
        flag=-(2**31),
    )
    driver.append(largest)
    seen = driver.messages("t" * 127, 2**31 - 1)[0]
    assert (seen.body, seen.properties, seen.flag) == (largest.body, largest.properties, -(2**31))


@pytest.mark.parametrize(
    "odd",
    [
        message("ipv6", born_host=pack_host("2001:db8::1", 65_535)),
        message("retried", reconsume_times=7),
        message("long topic", topic="%RETRY%" + "g" * 200),
    ],
    ids=lambda odd: odd.body.decode(),
)
def test_messages_of_every_layout_are_stored_among_others(odd: SentMessage) -> None:
    driver = Driver()
    driver.append(message("before"), odd, message("after"))
    held = driver.hold("t", odd, message("last"))
    driver.commit(held.half_offset)
    topic = odd.topic
    seen = [one for one in driver.messages(topic) if one.body == odd.body]
    assert [(one.born_host, one.reconsume_times) for one in seen] == [
        (odd.born_host, odd.reconsume_times)
    ] * 2
    assert driver.crashed().messages(topic) == driver.messages(topic)


def test_a_sender_cannot_make_an_ordinary_message_a_half_one() -> None:
    driver = Driver()
    driver.append(message("x", sys_flag=SYS_PREPARED | 0x2))
    assert driver.messages()[0].sys_flag & SYS_TRANSACTION_MASK == 0
    assert driver.messages()[0].sys_flag & 0x2
