"""SendMessage: every message type stored, and RocketMQ's codes for what cannot be."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from escrowmq.broker.grpc.names import duration, timestamp
from escrowmq.broker.grpc.sending import MESSAGES_MAX
from escrowmq.model.catalog import MessageType
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.message.properties import parse_properties
from tests.unit.broker.grpc_peer import (
    DELAY,
    FIFO,
    NORMAL,
    TRANSACTION,
    GrpcPeer,
    half,
    message,
)
from tests.unit.broker.wire import T0, clock_of, eventually, make_topic, serving, visible

DAY_MS = 24 * 3_600_000

REFUSED = [
    (message(topic="a b"), 40_002),
    (message(topic=""), 40_002),
    (message(topic="RMQ_SYS_TRANS_HALF_TOPIC"), 40_002),
    (message(tag=" "), 40_004),
    (message(tag="a|b"), 40_004),
    (message(tag="a\x01"), 40_004),
    (message(keys=["ok", ""]), 40_005),
    (message(keys=["a\nb"]), 40_005),
    (message(kind=FIFO, message_group=""), 40_006),
    (message(kind=FIFO, message_group="", users={"color": "red"}), 40_006),
    (message(kind=FIFO, message_group=" "), 40_006),
    (message(kind=FIFO, message_group="x" * 64), 40_006),
    (message(users={"TAGS": "x"}), 40_007),
    (message(users={"a": "b\x02c"}), 40_007),
    (message(users={"": "b"}), 40_007),
    (message(users={"a": ""}), 40_007),
    (message(""), 40_009),
    (message("x" * 256), 40_009),
    (message("a\x01"), 40_009),
    (message(kind=DELAY, delivery_timestamp=timestamp(T0 + DAY_MS + 60_000)), 40_012),
    (message(kind=DELAY, delivery_timestamp=timestamp(-5_000)), 40_012),
    # A message says one type and has the fields of another.
    (message(kind=FIFO), 40_014),
    (message(kind=DELAY), 40_014),
    (message(kind=NORMAL, message_group="g"), 40_014),
    (message(kind=TRANSACTION, message_group="g"), 40_014),
    (message(kind=TRANSACTION, delivery_timestamp=timestamp(T0)), 40_014),
    (message(kind=FIFO, message_group="g", delivery_timestamp=timestamp(T0)), 40_014),
    (message(kind=99), 40_014),
    (message(body_digest=grpc.Digest(type=1, checksum="00000001")), 40_016),
    (message(body_digest=grpc.Digest(type=2, checksum="00000001")), 40_016),
    (message(body_digest=grpc.Digest(type=3, checksum="00000001")), 40_016),
    (message(body_encoding=2), 40_016),
    (message(body=b""), 41_302),
    (message(body=bytes(4 * 1024 * 1024 + 1)), 41_301),
    (message(body=gzip.compress(bytes(5 * 1024 * 1024)), body_encoding=2), 41_301),
    (message(users={f"k{n}": "v" for n in range(129)}), 43_101),
    (message(users={"k": "v" * 16_384}), 43_101),
    (half(orphaned_transaction_recovery_duration=duration(3_601_000)), 40_000),
    (message(kind=5), 50_500),
    (message(priority=1), 50_500),
]


async def test_a_message_is_stored_as_it_was_sent(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        sent = await GrpcPeer.of(server).send(
            message(tag="paid", keys=["k1", "k2"], users={"color": "red"}, trace_context="trace")
        )
        assert sent.status.code == 20_000
        (entry,) = sent.entries
        assert (entry.status.code, entry.message_id, entry.offset) == (20_000, "m1", 0)
        assert not entry.transaction_id
        (seen,) = visible(server)
        assert (seen.body, seen.born_at_ms, seen.queue_id) == (b"paid", T0 - 5, 1)
        kept = parse_properties(seen.properties)
        assert kept == {
            "color": "red",
            "UNIQ_KEY": "m1",
            "KEYS": "k1 k2",
            "TAGS": "paid",
            "TRACE_CONTEXT": "trace",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "DefaultCluster",
        }


@pytest.mark.parametrize(("sent", "code"), REFUSED)
async def test_a_message_that_cannot_be_stored_has_rocketmqs_code(
    tmp_path: Path, sent: grpc.Message, code: int
) -> None:
    async with serving(tmp_path) as server:
        answer = await GrpcPeer.of(server).send(sent)
        assert answer.status.code == code
        assert answer.status.message
        assert visible(server) == []


async def test_a_compressed_body_is_stored_plain_and_verified(tmp_path: Path) -> None:
    """Remoting consumers expect another compression."""
    async with serving(tmp_path) as server:
        packed = gzip.compress(b"paid" * 100)
        await GrpcPeer.of(server).send(message(body=packed, body_encoding=2))
        assert [one.body for one in visible(server)] == [b"paid" * 100]


@pytest.mark.parametrize(
    ("kind", "checksum"),
    [
        (1, f"{crc32(b'paid'):08X}"),
        (2, hashlib.md5(b"paid").hexdigest().upper()),
        (3, hashlib.sha1(b"paid").hexdigest()),
        # A kind that only newer clients know.
        (9, "?"),
    ],
)
async def test_a_right_checksum_is_accepted(tmp_path: Path, kind: int, checksum: str) -> None:
    async with serving(tmp_path) as server:
        digest = grpc.Digest(type=kind, checksum=checksum)
        answer = await GrpcPeer.of(server).send(message(body_digest=digest))
        assert answer.status.code == 20_000


@pytest.mark.parametrize("kind", list(MessageType)[:4])
async def test_the_first_message_gives_a_new_topic_its_type(
    tmp_path: Path, kind: MessageType
) -> None:
    fields: dict[MessageType, dict[str, Any]] = {
        MessageType.NORMAL: {},
        MessageType.FIFO: {"message_group": "g"},
        MessageType.DELAY: {"delivery_timestamp": timestamp(T0 + 1_000)},
        MessageType.TRANSACTION: {},
    }
    numbers = {"NORMAL": NORMAL, "FIFO": FIFO, "DELAY": DELAY, "TRANSACTION": TRANSACTION}
    async with serving(tmp_path) as server:
        sent = message(kind=numbers[kind.value], **fields[kind])
        assert (await GrpcPeer.of(server).send(sent)).status.code == 20_000
        topic = server.broker.topics.get("orders")
        assert topic is not None
        assert topic.message_type is kind


@pytest.mark.parametrize("is_made", [False, True])
async def test_types_are_enforced_whatever_the_setting_for_remoting(
    tmp_path: Path, *, is_made: bool
) -> None:
    async with serving(tmp_path, topics={"auto_create": is_made}) as server:
        await make_topic(server, "orders", 2)
        peer = GrpcPeer.of(server)
        assert (await peer.send(half())).status.code == 40_014
        assert (await peer.send(message())).status.code == 20_000
        created = await peer.send(half(topic="new"))
        assert created.status.code == (20_000 if is_made else 40_402)


async def test_a_topic_that_may_not_be_written_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server, "orders", 1, perm=4)
        assert (await GrpcPeer.of(server).send(message())).status.code == 40_300


async def test_messages_of_one_group_share_a_queue_whatever_the_client_says(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        for number in range(8):
            await peer.send(
                message(f"m{number}", b"%d" % number, kind=FIFO, message_group="g", queue_id=number)
            )
        queues = [visible(server, queue_id=queue_id) for queue_id in range(8)]
        (used,) = [queue for queue in queues if queue]
        assert [one.body for one in used] == [b"%d" % number for number in range(8)]
        assert parse_properties(used[0].properties)["__SHARDINGKEY"] == "g"


async def test_a_queue_that_the_topic_lacks_is_replaced(tmp_path: Path) -> None:
    """The client has the route of a time when the topic had more queues."""
    async with serving(tmp_path) as server:
        await make_topic(server, "orders", 1)
        assert (await GrpcPeer.of(server).send(message(queue_id=7))).status.code == 20_000
        assert len(visible(server, queue_id=0)) == 1


async def test_a_delayed_message_waits_for_its_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        at = timestamp(T0 + 5_000)
        await GrpcPeer.of(server).send(message(kind=DELAY, delivery_timestamp=at))
        await server.broker.releasing.release_due()
        assert visible(server) == []
        clock_of(server).advance(ms=5_001)
        await eventually(lambda: visible(server))


async def test_each_message_of_a_request_has_its_own_status(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        answer = await GrpcPeer.of(server).send(
            message("m1", b"1"), message("m2", b""), message("m3", b"3")
        )
        assert answer.status.code == 30_000
        assert [entry.status.code for entry in answer.entries] == [20_000, 41_302, 20_000]
        assert [one.body for one in visible(server)] == [b"1", b"3"]


async def test_a_request_with_one_result_has_its_code(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        good = await peer.send(message("m1"), message("m2"))
        bad = await peer.send(message(body=b""), message(body=b""))
        assert (good.status.code, bad.status.code) == (20_000, 41_302)
        assert [entry.offset for entry in good.entries] == [0, 1]


async def test_a_request_has_messages_of_one_topic_and_not_too_many(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        mixed = await peer.send(message(), message(topic="others"))
        assert mixed.status.code == 40_000
        assert (await peer.send()).status.code == 40_000
        many = await peer.send(*[message() for _ in range(MESSAGES_MAX + 1)])
        assert many.status.code == 40_000
        assert visible(server) == []
