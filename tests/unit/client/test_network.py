from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from escrowmq.broker.server import Server
from escrowmq.client.network.routing import Network, name_servers
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.protocol.remoting.codes import RequestCode
from tests.unit.broker.wire import make_topic, serving


@asynccontextmanager
async def network(server: Server, *before: str) -> AsyncIterator[Network]:
    made = Network([*before, server.name_address], lambda *_: None)
    try:
        yield made
    finally:
        await made.close()


async def topic(server: Server, name: str) -> None:
    await make_topic(server, name, read_queue_count=2, write_queue_count=3)


async def test_a_route_names_the_queues_to_write_and_to_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, network(server) as net:
        await topic(server, "orders")
        route = await net.route("orders")
        assert [place.queue_id for place in route.writable] == [0, 1, 2]
        assert [place.queue_id for place in route.readable] == [0, 1]
        assert {place.address for place in route.writable} == {server.broker_address}
        assert not route.is_borrowed
        assert await net.route("orders") is route
        net.forget("orders")
        assert await net.route("orders") is not route


async def test_a_new_topic_is_made_where_the_default_topic_is(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, network(server) as net:
        route = await net.route("new")
        # The topic will have as many queues, so keys keep their queues after its creation.
        assert [place.queue_id for place in route.writable] == list(range(8))
        assert route.readable == ()
        assert route.is_borrowed


async def test_a_topic_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, topics={"auto_create": False}) as server, network(server) as net:
        with pytest.raises(RequestRefused, match="topic_unknown"):
            await net.route("new")


async def test_the_next_name_server_is_asked_when_one_is_gone(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, network(server, "127.0.0.1:1") as net:
        assert (await net.route("new")).writable


async def test_without_a_name_server_the_old_route_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("escrowmq.client.network.routing.ROUTE_S", 0.0)
    async with serving(tmp_path) as server:
        net = Network(server.name_address, lambda *_: None)
        await topic(server, "orders")
        known = await net.route("orders")
    assert await net.route("orders") is known
    with pytest.raises(Unavailable, match="name_server_unreachable"):
        await net.route("other")
    await net.close()


async def test_many_callers_share_one_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, network(server) as net:
        address = server.broker_address
        found = await asyncio.gather(*(net.connection(address) for _ in range(10)))
        assert len(set(map(id, found))) == 1
        found[0].close()
        await found[0].lost
        assert await net.connection(address) is not found[0]


async def test_a_question_is_asked_again_on_a_new_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, network(server) as net:
        address = server.name_address
        first = await net.connection(address)
        asking = asyncio.ensure_future(net.ask(address, RequestCode.GET_BROKER_CLUSTER_INFO))
        await asyncio.sleep(0)
        first.close()
        assert (await asking).code == 0


async def test_a_closed_network_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        async with network(server) as net:
            pass
        with pytest.raises(Unavailable, match="client_closed"):
            await net.connection(server.broker_address)


def test_name_servers_as_rocketmq_writes_them() -> None:
    assert name_servers("a:1; b:2") == ("a:1", "b:2")
    assert name_servers(["a:1"]) == ("a:1",)
    with pytest.raises(RequestRefused, match="address_illegal"):
        name_servers(" ; ")
