"""Half messages sent as columns are stored as if they were sent one by one."""

from __future__ import annotations

import pytest

from escrowmq.model.message import SentMessage
from escrowmq.protocol.message.stored_message import decode
from escrowmq.transaction.commands import HoldReply, Prepare
from escrowmq.transaction.policy import CheckPolicy
from tests.unit.columns import columns_of
from tests.unit.store.helpers import HOST, Driver, message


def sent(size: int = 0) -> tuple[SentMessage, ...]:
    """Two topics, three queues; one message waits after the commit."""
    places = [("orders", 0), ("orders", 1), ("points", 0), ("orders", 1)]
    return tuple(
        message(
            f"body {number}" + "." * size,
            topic=topic,
            queue_id=queue_id,
            unique_key=f"unique {number}",
            keys="a b" if number % 2 else "",
            tags="paid",
            born_host=HOST,
            deliver_after_ms=5_000 if number == 2 else 0,
        )
        for number, (topic, queue_id) in enumerate(places)
    )


def prepared(*, by_column: bool, size: int = 0, number: int | None = None) -> Prepare:
    messages = sent(size)
    return Prepare(
        group="pay",
        transaction_id="t",
        messages=() if by_column else messages,
        columns=columns_of(messages) if by_column else None,
        number=number,
    )


def test_everything_is_the_same_before_and_after_the_commit() -> None:
    drivers = []
    for by_column in (False, True):
        driver = Driver()
        reply = driver.do(prepared(by_column=by_column)).reply
        assert isinstance(reply, HoldReply)
        assert (reply.half_offset, reply.count, len(reply.log_offsets)) == (0, 4, 4)
        driver.commit(0)
        drivers.append(driver)
    one_by_one, columned = drivers
    assert columned.picture() == one_by_one.picture()
    assert columned.bodies("orders", 1) == ["body 1", "body 3"]
    assert columned.bodies("points") == []
    for driver in drivers:
        driver.clock.advance(ms=5_000)
        driver.release()
    assert columned.bodies("points") == ["body 2"]
    assert columned.picture() == one_by_one.picture()
    assert columned.crashed().picture() == one_by_one.crashed().picture()


def test_a_repeated_request_is_answered_as_the_first() -> None:
    driver = Driver()
    command = prepared(by_column=True, number=0)
    first = driver.do(command).reply
    assert isinstance(first, HoldReply)
    again = driver.do(command).reply
    assert isinstance(again, HoldReply)
    assert again.repeated
    assert (again.half_offset, again.log_offsets) == (first.half_offset, first.log_offsets)
    assert driver.store.table.end == 4


def test_more_bytes_than_a_transaction_may_have_are_refused() -> None:
    driver = Driver(policy=CheckPolicy(transaction_bytes_max=1024))
    refused = driver.refused(prepared(by_column=True, size=300))
    assert refused.code == driver.refused(prepared(by_column=False, size=300)).code
    assert driver.store.table.end == 0


@pytest.mark.parametrize("by_column", [False, True])
def test_each_is_found_by_its_keys(*, by_column: bool) -> None:
    driver = Driver()
    driver.do(prepared(by_column=by_column))
    driver.commit(0)
    for key, bodies in (("b", [b"body 1", b"body 3"]), ("unique 0", [b"body 0"])):
        found = driver.reader.find("orders", key, limit=10)
        assert sorted(decode(one).body for one in found) == bodies
