"""Over a real socket: meta.db can be lost, and stores of the previous version open."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from escrowmq.protocol.remoting.admin_headers import (
    DeleteGroupHeader,
    KeyValueHeader,
)
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.store.checkpoint.checkpoint import load, save
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.repair.inspect import check
from escrowmq.transaction.states import State
from tests.unit.broker.test_catalog import commit_offset, delete, queried, texts
from tests.unit.broker.test_delivering import (
    PULL,
    bodies,
    pulling,
    send,
)
from tests.unit.broker.wire import (
    SEND,
    Peer,
    facts,
    make_topic,
    sending,
    serving,
)
from tests.unit.logged import events

V2 = Path(__file__).parents[2] / "golden" / "v2"


async def test_a_topic_keeps_its_queues_when_meta_db_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await make_topic(server, "orders", 32)
        for queue_id in range(32):
            header = sending(queue_id=queue_id)
            assert (await peer.ask(SEND, header, b"%d" % queue_id)).code == 0
        await peer.ask(RequestCode.PUT_KV_CONFIG, KeyValueHeader(namespace="n", key="k", value="v"))
    (tmp_path / "meta.db").unlink()
    with caplog.at_level(logging.ERROR):
        async with serving(tmp_path) as server:
            topic = server.broker.topics.named("orders")
            assert (topic.read_queue_count, topic.write_queue_count) == (32, 32)
            peer = await Peer.to(server.broker_address)
            for queue_id in range(32):
                answer = await peer.ask(PULL, pulling(0, queue_id=queue_id))
                assert bodies(answer) == [str(queue_id)]
            kept = await peer.ask(
                RequestCode.GET_KV_CONFIG, KeyValueHeader(namespace="n", key="k", value="")
            )
            assert facts(kept)["value"] == "v"
            assert server.broker.vitals.found.catalog.offsets_lost == "meta.db was missing"
    assert "meta_rebuilt" in events(caplog)
    async with serving(tmp_path) as server:
        assert server.broker.vitals.found.catalog.offsets_lost == ""
    with closing(sqlite3.connect(tmp_path / "meta.db")) as connection:
        names = connection.execute("SELECT name FROM topics").fetchall()
        assert names == [("orders",)]


async def test_one_wrong_offset_does_not_refuse_the_start(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "a", "b")
        await commit_offset(peer, 1)
        await commit_offset(peer, 1, group="other")
        await commit_offset(peer, 0, queue_id=2)
    with closing(sqlite3.connect(tmp_path / "meta.db")) as connection, connection:
        connection.execute("UPDATE offsets SET queue_offset = 99 WHERE consumer_group = 'other'")
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert await queried(peer) == 1
        # The offset is lost, so the group gets the start of the queue, never its end.
        assert await queried(peer, "other") == 0
        assert server.broker.vitals.found.catalog.offsets_lost == "1 rows are damaged"
    assert (tmp_path / "meta.db.damaged-1").exists()
    async with serving(tmp_path) as server:
        assert server.broker.vitals.found.catalog.offsets_lost == ""


@pytest.mark.parametrize("loss", ["missing", "damaged", "old"])
async def test_a_group_whose_offsets_were_lost_gets_the_start_and_a_new_one_does_not(
    tmp_path: Path, loss: str
) -> None:
    path = tmp_path / "meta.db"
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "a")
        await commit_offset(peer, 0, group="first")
    shutil.copy(path, tmp_path / "old.db")
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await commit_offset(peer, 1)
        await server.broker.meta_writing.write()
    if loss == "missing":
        path.unlink()
    elif loss == "damaged":
        path.write_bytes(b"\0" * 8_192)
    else:
        shutil.copy(tmp_path / "old.db", path)
    for _ in range(3):
        async with serving(tmp_path) as server:
            peer = await Peer.to(server.broker_address)
            assert await queried(peer) == 0
            await send(peer, "more")
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(PULL, pulling(0, consumer_group="young"))
        assert await queried(peer, "young") is None
        # A deleted group that comes back is a new group.
        gone = DeleteGroupHeader(consumer_group="shop")
        assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone)).code == 0
        await peer.ask(PULL, pulling(0))
        assert await queried(peer) is None
    if loss == "damaged":
        assert (tmp_path / "meta.db.damaged-1").stat().st_size == 8_192


async def test_a_deleted_topic_does_not_come_back_by_an_old_meta_db(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "a", "b")
        await commit_offset(peer, 2)
        assert (await peer.ask(SEND, sending("gone"), b"x")).code == 0
    shutil.copy(path, tmp_path / "old.db")
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for topic in ("orders", "gone"):
            assert (await delete(peer, topic)).code == 0
        await send(peer, "new")
    shutil.copy(tmp_path / "old.db", path)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert server.broker.catalog.topic("gone") is None
        assert texts(server) == ["new"]
        # The old offset would skip the message.
        assert await queried(peer) == 0
        assert server.broker.meta.offsets == {}


async def test_a_topic_whose_record_is_lost_is_made_of_its_queues(tmp_path: Path) -> None:
    """A repair may remove the frame that made the topic."""
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await make_topic(server, "orders", 8)
        assert (await peer.ask(SEND, sending(queue_id=5), b"a")).code == 0
    disk = OsDisk(tmp_path / "store")
    checkpoint = load(disk, "checkpoint")
    assert checkpoint is not None
    catalog = checkpoint.catalog
    topics = [kept for kept in catalog.topics if kept.topic.name != "orders"]
    catalog = msgspec.structs.replace(catalog, topics=topics)
    save(disk, msgspec.structs.replace(checkpoint, catalog=catalog))
    async with serving(tmp_path) as server:
        assert server.broker.vitals.found.catalog.topics_found == ["orders"]
        assert server.broker.topics.named("orders").read_queue_count == 6
        assert texts(server, queue_id=5) == ["a"]


async def test_a_queue_whose_name_is_lost_makes_no_topic(tmp_path: Path) -> None:
    """A repair that finds none of its messages gives the queue a name that no topic can have."""
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "a")
    disk = OsDisk(tmp_path / "store")
    checkpoint = load(disk, "checkpoint")
    assert checkpoint is not None
    (named,) = checkpoint.queues
    lost = msgspec.structs.replace(named, topic="lost.0")
    save(disk, msgspec.structs.replace(checkpoint, queues=[lost]))
    async with serving(tmp_path) as server:
        assert server.broker.vitals.found.catalog.topics_found == []
        assert server.broker.catalog.topic("lost.0") is None


async def test_no_topic_or_group_is_written_on_the_loop(tmp_path: Path) -> None:
    """A separate thread writes the SQLite file."""
    async with serving(tmp_path) as server:
        loop_thread = asyncio.get_running_loop()
        writers: list[object] = []
        write = server.broker.meta.write

        def watched(changes: object) -> None:
            try:
                writers.append(asyncio.get_running_loop())
            except RuntimeError:
                writers.append(None)
            write(changes)  # type: ignore[arg-type] # passed on unchanged

        server.broker.meta.write = watched  # type: ignore[method-assign]
        peer = await Peer.to(server.broker_address)
        await send(peer, "a")
        await commit_offset(peer, 1)
        assert writers == []
        await server._flush_offsets()
        assert writers
        assert loop_thread not in writers


# Stores of the previous version.


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(V2, tmp_path / "v2"))


async def test_a_data_directory_of_version_2_opens_with_its_topics_groups_and_settings(
    old: Path,
) -> None:
    for _ in range(2):
        async with serving(old) as server:
            peer = await Peer.to(server.broker_address)
            assert server.broker.topics.named("orders").read_queue_count == 32
            for queue_id in range(32):
                assert texts(server, queue_id=queue_id) == [f"order {queue_id}"]
            assert await queried(peer) == 1
            order = await peer.ask(
                RequestCode.GET_KV_CONFIG,
                KeyValueHeader(namespace="ORDER_TOPIC_CONFIG", key="orders", value=""),
            )
            assert facts(order)["value"] == "broker-a:32"
            # A topic deleted before the log recorded deletions does not come back either.
            assert server.broker.catalog.topic("gone") is None
            assert "gone" not in server.broker.store.core.names.queues_of
            assert server.broker.store.core.row(0).state is State.PREPARED
    async with serving(old) as server:
        peer = await Peer.to(server.broker_address)
        assert (await peer.ask(SEND, sending("gone"), b"new")).code == 0
        assert texts(server, "gone") == ["new"]
        assert (await delete(peer, "gone")).code == 0
    assert check(OsDisk(old / "store", read_only=True)).findings == []


async def test_one_without_its_meta_db_has_the_queues_that_its_log_names(old: Path) -> None:
    (old / "meta.db").unlink()
    async with serving(old) as server:
        assert server.broker.vitals.found.catalog.offsets_lost == "meta.db was missing"
        assert server.broker.topics.named("orders").read_queue_count == 32
        assert texts(server, queue_id=31) == ["order 31"]
        # Without meta.db, the deletion of "gone" is unknown.
        assert server.broker.vitals.found.catalog.topics_found == ["gone", "orders"]


async def test_a_migration_that_was_cut_short_is_done_again(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from escrowmq.broker.state import catalog_opening

    done: list[object] = []
    do = catalog_opening._do

    def cut(store: object, command: object, now_ms: int) -> None:
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(command)
        do(store, command, now_ms)  # type: ignore[arg-type] # passed on unchanged

    with monkeypatch.context() as patched:
        patched.setattr(catalog_opening, "_do", cut)
        with pytest.raises(KeyboardInterrupt):
            async with serving(old):
                pass
    async with serving(old) as server:
        assert server.broker.topics.named("orders").read_queue_count == 32
        assert server.broker.catalog.group("shop") is not None
