"""CHECK_IMMUNITY_TIME_IN_SECONDS on a message of the SDK sets the time of its first back-check."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.client.messages.messages import Message
from escrowmq.client.producer.producer import AsyncProducer
from tests.unit.broker.wire import T0, serving
from tests.unit.client.apache_like import play_apache
from tests.unit.client.test_producer import halves

IMMUNE = "CHECK_IMMUNITY_TIME_IN_SECONDS"
#: One message more than the limit for transactions that share a request.
MANY = 65


@pytest.mark.parametrize("is_apache", [False, True])
@pytest.mark.parametrize(("seconds", "first_ms"), [("60", 60_000), ("0", 0), ("soon", 2_000)])
async def test_a_message_chooses_its_first_check_before_its_producer_does(
    tmp_path: Path, seconds: str, first_ms: int, *, is_apache: bool
) -> None:
    async with serving(tmp_path) as server:
        if is_apache:
            play_apache(server)
        async with AsyncProducer(server.name_address, "pay", check_after_s=2.0) as producer:
            await producer.send_half("orders", b"1", properties={IMMUNE: seconds})
            await producer.send_half("orders", b"2")
        assert [half.next_at_ms - T0 for half in halves(server)] == [first_ms, 2_000]


@pytest.mark.parametrize("count", [3, MANY])
async def test_of_several_messages_the_longest_time_counts(tmp_path: Path, count: int) -> None:
    async with (
        serving(tmp_path) as server,
        AsyncProducer(server.name_address, "pay") as producer,
    ):
        times = ["30", "90", *["5"] * (count - 2)]
        await (await producer._core.started()).hold(
            "t", [Message(topic="orders", properties={IMMUNE: one}) for one in times]
        )
        first, *_ = halves(server)
        assert first.next_at_ms == T0 + 90_000
