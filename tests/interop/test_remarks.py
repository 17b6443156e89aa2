"""Our broker keeps a stock client's remark about a failed check."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.native.headers import TransactionHeader
from escrowmq.protocol.native.requests import NativeCode
from tests.interop.harness import Ability, Answer, Escrow, Message, Peer, every_peer
from tests.interop.scenario import eventually, fresh

THROWERS = [
    pytest.param(peer.name, marks=pytest.mark.xdist_group(peer.name))
    for peer in every_peer()
    if {Ability.TRANSACTION, Ability.THROWING_LISTENER} <= peer.abilities
]


@pytest.mark.parametrize("peer_name", THROWERS)
def test_the_exception_of_a_stock_check_is_kept(
    broker: Escrow, peer_named: Callable[[str], Peer], peer_name: str
) -> None:
    topic = fresh("remark")
    broker.create_topic(topic)
    producer = peer_named(peer_name).start_transaction_producer(
        broker.name_server, fresh("producers")
    )
    sent = producer.send_in_transaction(
        Message(topic=topic, keys="bad-day"),
        local=Answer.UNKNOWN,
        checks=[Answer.THROW, Answer.COMMIT],
    )
    producer.wait_for_check("bad-day", 2)
    assert sent.transaction_id is not None
    asked = TransactionHeader(transaction_id=sent.transaction_id)

    def remarks() -> list[str]:
        with NativeCalls(broker.broker_address) as calls:
            rows = calls.rows(NativeCode.LIFE_LINE, asked)
            return [row.detail for row in rows if row.event == "answered"]

    eventually(lambda: len(remarks()) == 1, "the answer to the first check")
    (remark,) = remarks()
    assert remark.startswith("check 1: ")
    assert "thrown as scripted" in remark
