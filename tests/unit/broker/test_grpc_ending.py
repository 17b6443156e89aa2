"""EndTransaction tells the truth: about the decision that stands, at any age, after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.broker.grpc.transaction_ids import TransactionIds
from escrowmq.broker.server import Server
from escrowmq.broker.state.row_places import RowPlace, epoch_to_check
from escrowmq.model.errors import RequestRefused
from escrowmq.model.lineage import Epoch, Lineage, new_lineage
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.transaction.states import State
from tests.unit.broker.asking import ASK, PARK, obey
from tests.unit.broker.grpc_peer import (
    COMMIT,
    PLACE,
    ROLLBACK,
    GrpcPeer,
    half,
)
from tests.unit.broker.wire import clock_of, serving, visible

OK, FAILED, INVALID = 20_000, 42_800, 40_008
NEITHER = 0
DAY_MS = 24 * 3_600_000


def state_of(server: Server, half_offset: int = 0) -> State:
    found = server.broker.store.core.half(half_offset)
    assert found is not None
    return found.state


@pytest.mark.parametrize(("resolution", "seen"), [(COMMIT, [b"paid"]), (ROLLBACK, [])])
async def test_a_transaction_ends_as_its_producer_says(
    tmp_path: Path, resolution: int, seen: list[bytes]
) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        (sent,) = (await peer.send(half())).entries
        assert visible(server) == []
        assert await peer.end(sent, resolution) == OK
        assert [one.body for one in visible(server)] == seen


@pytest.mark.parametrize(("first", "second"), [(COMMIT, ROLLBACK), (ROLLBACK, COMMIT)])
async def test_the_same_decision_again_is_ok_and_the_opposite_is_not(
    tmp_path: Path, first: int, second: int
) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        (sent,) = (await peer.send(half())).entries
        assert await peer.end(sent, first) == OK
        assert await peer.end(sent, first) == OK
        state = state_of(server)
        assert await peer.end(sent, second) == FAILED
        assert state_of(server) is state
        assert server.broker.contradictions.count == 1


async def test_the_refusal_names_the_first_decider(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server, "first")
        (sent,) = (await peer.send(half())).entries
        await peer.end(sent, COMMIT)
        answer = await peer.again("second").ask(
            "EndTransaction",
            grpc.EndTransactionRequest(
                topic=grpc.Resource(name="orders"),
                transaction_id=sent.transaction_id,
                resolution=ROLLBACK,
            ),
        )
        assert "already_committed" in answer.status.message
        assert "'first'" in answer.status.message


async def test_an_unspecified_resolution_decides_nothing_and_loses_nothing(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        (sent,) = (await peer.send(half())).entries
        assert await peer.end(sent, NEITHER) == OK
        assert state_of(server) is State.PREPARED
        assert await peer.end(sent, COMMIT) == OK
        assert len(visible(server)) == 1


async def test_a_resolution_that_only_newer_clients_know_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        (sent,) = (await peer.send(half())).entries
        assert await peer.end(sent, 7) == 40_000
        assert state_of(server) is State.PREPARED


async def test_a_transaction_is_found_after_restarts_and_days(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        (sent,) = (await GrpcPeer.of(server).send(half())).entries
        clock = clock_of(server)
    for _ in range(3):
        clock.advance(ms=DAY_MS // 2)
        async with serving(tmp_path, clock) as server:
            assert await GrpcPeer.of(server).end(sent, NEITHER) == OK
    async with serving(tmp_path, clock) as server:
        peer = GrpcPeer.of(server)
        assert await peer.end(sent, COMMIT) == OK
        assert len(visible(server)) == 1
    async with serving(tmp_path, clock) as server:
        peer = GrpcPeer.of(server)
        assert await peer.end(sent, COMMIT) == OK
        assert await peer.end(sent, ROLLBACK) == FAILED


async def test_a_parked_transaction_can_still_be_decided(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        (sent,) = (await peer.send(half())).entries
        clock_of(server).advance(ms=73 * 3_600_000)
        assert await obey(server, PARK) == "parked"
        assert await peer.end(sent, NEITHER) == OK
        assert state_of(server) is State.PARKED
        assert await peer.end(sent, COMMIT) == OK
        assert await peer.end(sent, ROLLBACK) == FAILED


async def test_a_commit_for_a_deleted_topic_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        (sent,) = (await peer.send(half())).entries
        broker = server.broker
        await broker.writer.submit(broker.topics.remove("orders", by="me", is_forced=True))
        assert await peer.end(sent, COMMIT) == FAILED
        assert await peer.end(sent, ROLLBACK) == OK


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "m1",
        "0.0.0.0",
        "x" * 10_000,
        "....",
        "\udcff".encode("utf-8", "replace").decode(),
    ],
)
async def test_an_id_that_this_broker_did_not_make_is_invalid(tmp_path: Path, forged: str) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        (sent,) = (await peer.send(half())).entries
        fake = grpc.SendResultEntry(message_id=sent.message_id, transaction_id=forged)
        assert await peer.end(fake, COMMIT) == INVALID
        assert state_of(server) is State.PREPARED


async def test_a_changed_id_is_invalid(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        (sent,) = (await peer.send(half())).entries
        named, _, code = sent.transaction_id.rpartition(".")
        epoch, offset, at = named.split(".")
        for changed in (
            f"{epoch}.{int(offset, 16) + 1:x}.{at}.{code}",
            f"{epoch}.{offset}.{int(at, 16) + 1:x}.{code}",
            f"{named}.{code[:-1]}",
        ):
            fake = grpc.SendResultEntry(transaction_id=changed)
            assert await peer.end(fake, COMMIT) == INVALID


@pytest.mark.parametrize(
    "place",
    [
        # Rightly signed, for a half message that retention has deleted or that never was.
        RowPlace("", 5_000, 0),
        # The place in the log of another message.
        RowPlace("", 0, 4_096),
        # An epoch of another history.
        RowPlace("0123456789abcdef", 0, -1),
    ],
)
async def test_an_id_of_what_is_gone_is_invalid(tmp_path: Path, place: RowPlace) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        await peer.send(half())
        core = server.broker.store.core
        at = core.row(0).log_offset if place.log_offset < 0 else place.log_offset
        made = TransactionIds(server.broker.key).make(
            place.epoch or core.lineage.epoch, place.half_offset, at
        )
        fake = grpc.SendResultEntry(transaction_id=made)
        assert await peer.end(fake, COMMIT) == INVALID
        assert state_of(server) is State.PREPARED


async def test_the_topic_and_the_message_must_be_those_of_the_transaction(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        (sent,) = (await peer.send(half())).entries
        assert await peer.end(sent, COMMIT, topic="others") == INVALID
        assert await peer.end(sent, COMMIT, topic="a b") == 40_002
        other = grpc.SendResultEntry(message_id="m9", transaction_id=sent.transaction_id)
        assert await peer.end(other, COMMIT) == INVALID
        assert state_of(server) is State.PREPARED


async def test_a_half_that_is_sent_again_is_answered_with_the_first_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        (first,) = (await peer.send(half(queue_id=1))).entries
        (again,) = (await peer.send(half(queue_id=2))).entries
        assert (again.transaction_id, again.offset) == (first.transaction_id, first.offset)
        (other,) = (await peer.send(half(body=b"other"))).entries
        assert other.transaction_id != first.transaction_id
        assert await peer.end(again, COMMIT) == OK
        # Once it is decided, the same id begins another transaction.
        (new,) = (await peer.send(half())).entries
        assert new.offset > other.offset


async def test_a_half_that_is_sent_again_after_a_restart_is_the_first_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        (first,) = (await GrpcPeer.of(server).send(half())).entries
        clock = clock_of(server)
    async with serving(tmp_path, clock) as server:
        peer = GrpcPeer.of(server)
        (again,) = (await peer.send(half())).entries
        assert again.offset == first.offset
        assert await peer.end(first, COMMIT) == OK
        assert await peer.end(again, COMMIT) == OK
        assert len(visible(server)) == 1


async def test_a_late_resend_is_another_transaction(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        (first,) = (await peer.send(half())).entries
        clock_of(server).advance(ms=30_001)
        (late,) = (await peer.send(half())).entries
        assert late.offset != first.offset


@pytest.mark.parametrize("source", [0, 1, 2])
async def test_an_answer_after_a_check_is_the_checks_whatever_it_says(
    tmp_path: Path, source: int
) -> None:
    """The official Go client never says that it answers a check."""
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        stream = await peer.produce("orders")
        (sent,) = (await peer.send(half())).entries
        clock_of(server).advance(ms=6_001)
        assert await obey(server, ASK) == "asked"
        await stream.take(grpc.TelemetryCommand)
        assert await peer.end(sent, COMMIT, source=source) == OK
        assert server.broker.counts.answers["commit"] == 1
        assert server.broker.counts.decisions["check", "committed"] == 1


@pytest.mark.parametrize("source", [0, 1])
async def test_after_an_answered_check_a_commit_is_the_producers_own(
    tmp_path: Path, source: int
) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        stream = await peer.produce("orders")
        (sent,) = (await peer.send(half())).entries
        clock_of(server).advance(ms=6_001)
        assert await obey(server, ASK) == "asked"
        await stream.take(grpc.TelemetryCommand)
        assert await peer.end(sent, NEITHER, source=source) == OK
        assert await peer.end(sent, COMMIT, source=source) == OK
        assert +server.broker.counts.answers == {"unknown": 1}
        assert server.broker.counts.decisions["producer", "committed"] == 1


async def test_a_check_is_answered_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        await peer.produce("orders")
        (sent,) = (await peer.send(half())).entries
        clock_of(server).advance(ms=6_001)
        assert await obey(server, ASK) == "asked"
        clock = clock_of(server)
    async with serving(tmp_path, clock) as server:
        assert await GrpcPeer.of(server).end(sent, COMMIT, source=2) == OK
        assert server.broker.counts.decisions["check", "committed"] == 1


def test_ids_of_another_key_are_invalid() -> None:
    made = TransactionIds(bytes(32)).make("e", 1, 2)
    assert TransactionIds(bytes(32)).read(made) == RowPlace("e", 1, 2)
    with pytest.raises(RequestRefused, match="transaction_id_illegal"):
        TransactionIds(b"x" * 32).read(made)


def test_an_epoch_that_the_lineage_dropped_proves_nothing() -> None:
    full = Lineage("s", (Epoch("b", 1_000, 5), Epoch("c", 2_000, 9)))
    assert epoch_to_check(full, RowPlace("a", 1, 500)) == ""
    assert epoch_to_check(full, RowPlace("a", 6, 1_500)) == "a"
    assert epoch_to_check(full, RowPlace("b", 1, 500)) == "b"
    assert epoch_to_check(new_lineage("s"), RowPlace("a", 1, 0)) == "a"


async def test_a_broker_serves_at_the_place_that_it_tells(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        request = grpc.QueryRouteRequest(topic=grpc.Resource(name="orders"))
        answer = await GrpcPeer.of(server).ask("QueryRoute", request)
        assert answer.message_queues[0].broker.name == PLACE.name
