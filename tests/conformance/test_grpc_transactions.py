"""Transactions of 5.x clients: how they begin, how they end, and how long their ids are good."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from escrowmq.broker.grpc.names import duration
from escrowmq.protocol.remoting.codes import ResponseCode
from escrowmq.protocol.remoting.send_headers import EndTransactionHeader
from escrowmq.transaction.commands import VerdictKind
from escrowmq.transaction.states import State
from tests.conformance.grpc_talk import (
    CLIENT,
    INVALID_ID,
    OK,
    REFUSED,
    SERVER_CHECK,
    WITH_GRPC,
    connected,
)
from tests.conformance.talk import clock_of
from tests.unit.broker.asking import ASK, PARK, obey, row
from tests.unit.broker.grpc_peer import COMMIT, ROLLBACK, half, message
from tests.unit.broker.wire import COMMIT as COMMIT_BITS
from tests.unit.broker.wire import END, SEND, Peer, ending, eventually, serving, visible
from tests.unit.broker.wire import ROLLBACK as ROLLBACK_BITS
from tests.unit.broker.wire import half as remoting_half

UNSPECIFIED = 0
#: A transaction's first back-check is due at this age.
DUE_MS = 6_001
DAY_MS = 24 * 3_600_000
#: RocketMQ's proxy waits for 30 seconds.
STOP_S_MAX = 15


# Ends.


async def test_a_grpc_commit_publishes_the_message(tmp_path: Path) -> None:
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        (sent,) = await client.send(half())
        assert await client.receive() == []
        assert await client.end(sent.transaction_id, COMMIT, source=CLIENT) == OK
        assert [one.body for one in await client.receive()] == [b"paid"]


async def test_a_rollback_in_answer_to_a_grpc_check_ends_the_transaction(tmp_path: Path) -> None:
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        stream = await client.produce("orders")
        await client.send(half())
        clock_of(server).advance(ms=DUE_MS)
        assert await obey(server, ASK) == "asked"
        asked = (await stream.check()).transaction_id
        assert await client.end(asked, ROLLBACK, source=SERVER_CHECK) == OK
        assert row(server).state is State.ROLLED_BACK
        assert await client.receive() == []


@pytest.mark.parametrize("source", [CLIENT, SERVER_CHECK])
async def test_a_grpc_end_without_a_resolution_decides_nothing_and_a_commit_still_works(
    tmp_path: Path, source: int
) -> None:
    """RocketMQ's proxy forgets the transaction, and refuses the commit that comes later."""
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        (sent,) = await client.send(half())
        for _ in range(3):
            assert await client.end(sent.transaction_id, UNSPECIFIED, source=source) == OK
        assert row(server).state is State.PREPARED
        assert await client.end(sent.transaction_id, COMMIT, source=source) == OK
        assert [one.body for one in await client.receive()] == [b"paid"]


@pytest.mark.parametrize(
    ("resolution", "same_bits", "opposite_bits", "opposite_code"),
    [
        (COMMIT, COMMIT_BITS, ROLLBACK_BITS, ResponseCode.TRANSACTION_SHOULD_COMMIT),
        (ROLLBACK, ROLLBACK_BITS, COMMIT_BITS, ResponseCode.TRANSACTION_SHOULD_ROLLBACK),
    ],
)
async def test_a_grpc_resolution_is_the_same_decision_as_its_remoting_number(
    tmp_path: Path, resolution: int, same_bits: int, opposite_bits: int, opposite_code: int
) -> None:
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        (sent,) = await client.send(half())
        assert await client.end(sent.transaction_id, resolution) == OK
        peer = await Peer.to(server.broker_address)

        def by_number(bits: int) -> EndTransactionHeader:
            return EndTransactionHeader(
                topic="orders",
                producer_group="orders",
                half_offset=sent.offset,
                log_offset=row(server).log_offset,
                resolution_bits=bits,
                unique_key="t1",
            )

        assert (await peer.ask(END, by_number(same_bits))).code == ResponseCode.SUCCESS
        assert (await peer.ask(END, by_number(opposite_bits))).code == opposite_code
        flags = [one.sys_flag & 0xC for one in visible(server)]
        assert flags == ([COMMIT_BITS] if resolution == COMMIT else [])


async def test_a_grpc_commit_after_a_rollback_is_refused_with_a_code(tmp_path: Path) -> None:
    """RocketMQ's proxy answers OK before its broker has read the decision."""
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        (sent,) = await client.send(half())
        assert await client.end(sent.transaction_id, ROLLBACK) == OK
        assert await client.end(sent.transaction_id, COMMIT) == REFUSED
        assert await client.end(sent.transaction_id, ROLLBACK) == OK
        assert await client.receive() == []


async def test_a_transaction_id_belongs_to_one_topic(tmp_path: Path) -> None:
    """The topic is the producer group of a 5.x client."""
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        (sent,) = await client.send(half())
        assert await client.end(sent.transaction_id, COMMIT, topic="others") == INVALID_ID
        assert row(server).state is State.PREPARED
        assert await client.end(sent.transaction_id, COMMIT) == OK


# How long ids are good.


async def test_a_check_that_was_not_sent_leaves_the_transaction_as_it_was(tmp_path: Path) -> None:
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        stream = await client.produce("orders")
        (sent,) = await client.send(half())
        stream.close()
        await eventually(lambda: server.broker.clients.producer_groups() == [])
        clock_of(server).advance(ms=DUE_MS)
        assert await obey(server, ASK) == "no_producer"
        assert row(server).checks_sent == 0
        again = await client.produce("orders")
        assert await obey(server, ASK) == "asked"
        assert (await again.check()).transaction_id == sent.transaction_id
        assert await client.end(sent.transaction_id, COMMIT) == OK


async def test_transactions_with_one_message_id_end_apart_and_in_any_order(
    tmp_path: Path,
) -> None:
    """RocketMQ's proxy knows them by the message id, and takes the newest at the first end."""
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        first, second, third = [
            (await client.send(half("same", body=body)))[0] for body in (b"1", b"2", b"3")
        ]
        assert len({one.transaction_id for one in (first, second, third)}) == 3
        assert await client.end(first.transaction_id, COMMIT, message_id="same") == OK
        assert await client.end(third.transaction_id, ROLLBACK, message_id="same") == OK
        assert await client.end(second.transaction_id, COMMIT, message_id="same") == OK
        # The same decision again gets the same answer.
        assert await client.end(first.transaction_id, COMMIT, message_id="same") == OK
        assert sorted(one.body for one in await client.receive()) == [b"1", b"2"]


async def test_a_grpc_commit_works_days_after_the_send(tmp_path: Path) -> None:
    """RocketMQ's proxy forgets a transaction after 30 seconds."""
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        (sent,) = await client.send(half())
        clock_of(server).advance(ms=2 * DAY_MS)
        assert await client.end(sent.transaction_id, COMMIT) == OK
        assert [one.body for one in await client.receive()] == [b"paid"]


async def test_a_grpc_commit_works_after_a_restart_for_which_the_broker_did_not_wait(
    tmp_path: Path,
) -> None:
    """RocketMQ's proxy waits at its shutdown until it has forgotten every transaction."""
    async with asyncio.timeout(STOP_S_MAX), serving(tmp_path, broker=WITH_GRPC) as server:
        clock = clock_of(server)
        async with connected(server) as client:
            (sent,) = await client.send(half())
    async with serving(tmp_path, clock, broker=WITH_GRPC) as server, connected(server) as client:
        assert await client.end(sent.transaction_id, COMMIT) == OK
        assert [one.body for one in await client.receive()] == [b"paid"]


@pytest.mark.parametrize("days", [0, 4])
@pytest.mark.parametrize("before", [None, ASK, PARK])
async def test_an_end_without_a_source_is_never_too_late(
    tmp_path: Path, before: VerdictKind | None, days: int
) -> None:
    """The official Go client never tells a source, which RocketMQ's broker then judges as late."""
    late = half(orphaned_transaction_recovery_duration=duration(60_000))
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        stream = await client.produce("orders")
        (sent,) = await client.send(late)
        clock_of(server).advance(ms=65_000)
        if before is ASK:
            assert await obey(server, ASK) == "asked"
            assert (await stream.check()).transaction_id == sent.transaction_id
        elif before is PARK:
            assert await obey(server, PARK) == "parked"
        clock_of(server).advance(ms=days * 24 * 3_600_000)
        assert await client.end(sent.transaction_id, COMMIT, source=0) == OK
        assert [one.body for one in await client.receive()] == [b"paid"]


async def test_a_commit_of_a_4x_producer_reaches_a_5x_consumer_without_a_check(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, remoting_half("t"), b"4.x")
        peer.tell(END, ending(answer, COMMIT_BITS))
        await eventually(lambda: visible(server))
        assert row(server).checks_sent == 0
        (told,) = await client.receive()
        assert (told.body, told.system_properties.message_id) == (b"4.x", "t")


# The rules that official clients apply to a transaction. The broker keeps them as well.


async def test_a_transactional_message_begins_a_transaction_and_an_ordinary_one_does_not(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        (sent,) = await client.send(half())
        assert sent.transaction_id
        assert (sent.message_id, sent.offset) == ("t1", 0)
        assert row(server).state is State.PREPARED
        (plain,) = await client.send(message(topic="plain"))
        assert plain.transaction_id == ""


async def test_a_second_message_is_never_in_the_transaction_of_the_first(tmp_path: Path) -> None:
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        first, second = await client.send(half("t1", body=b"1"), half("t2", body=b"2"))
        assert first.transaction_id != second.transaction_id
        assert await client.end(first.transaction_id, COMMIT) == OK
        assert [one.body for one in await client.receive()] == [b"1"]
        assert row(server, second.offset).state is State.PREPARED
        assert await client.end(second.transaction_id, ROLLBACK) == OK
        assert await client.receive() == []


async def test_an_end_with_the_receipt_of_its_message_is_accepted_and_any_other_is_refused(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        first, second = await client.send(half("t1", body=b"1"), half("t2", body=b"2"))
        wrong = client.end(first.transaction_id, COMMIT, message_id=second.message_id)
        assert await wrong == INVALID_ID
        assert row(server, first.offset).state is State.PREPARED
        right = client.end(first.transaction_id, COMMIT, message_id=first.message_id)
        assert await right == OK
        assert [one.body for one in await client.receive()] == [b"1"]


@pytest.mark.parametrize("resolution", [COMMIT, ROLLBACK])
async def test_an_end_without_a_transaction_id_is_refused(tmp_path: Path, resolution: int) -> None:
    """A client has no id before the broker has answered its send."""
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        await client.send(half())
        for guessed in ("", "t1"):
            code = await client.end(guessed, resolution, message_id="t1")
            assert code == INVALID_ID
        assert row(server).state is State.PREPARED


@pytest.mark.parametrize(
    ("resolution", "state"), [(COMMIT, State.COMMITTED), (ROLLBACK, State.ROLLED_BACK)]
)
async def test_an_end_with_a_receipt_decides_the_transaction(
    tmp_path: Path, resolution: int, state: State
) -> None:
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        (sent,) = await client.send(half())
        end = client.end(sent.transaction_id, resolution, message_id=sent.message_id)
        assert await end == OK
        assert row(server).state is state
