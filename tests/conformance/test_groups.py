"""Consumer groups: how they are created, what their owner may forbid, and who gets notified."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.client_bodies import CheckClientRequest, SubscriptionBody
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import UpdateOffsetHeader
from tests.conformance.talk import beat, pulling, put_group
from tests.unit.broker.wire import SEND, Peer, facts, sending, serving

PULL = RequestCode.PULL_MESSAGE
NOTIFIED = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


async def test_a_group_comes_to_be_with_its_first_heartbeat_or_pull(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer, "beats")
        await peer.ask(SEND, sending(), b"x")
        assert (await peer.ask(PULL, pulling(consumer_group="pulls"))).code == ResponseCode.SUCCESS
        assert {"beats", "pulls"} <= server.broker.catalog.groups.keys()
        assert server.broker.topics.named("%RETRY%beats").read_queue_count == 1


async def test_groups_may_be_made_by_their_owner_only(tmp_path: Path) -> None:
    async with serving(tmp_path, topics={"auto_create_groups": False}) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(), b"x")
        assert (await beat(peer)).code == ResponseCode.SUCCESS
        assert server.broker.clients.consumers("shop") is None
        refused = await peer.ask(PULL, pulling())
        assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        for tool in ("TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS"):
            answer = await peer.ask(PULL, pulling(consumer_group=tool))
            assert answer.code == ResponseCode.SUCCESS
        await put_group(peer)
        assert (await peer.ask(PULL, pulling())).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("name", ["", "a b", "x" * 249])
async def test_a_group_has_a_sound_name(tmp_path: Path, name: str) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(), b"x")
        assert (await put_group(peer, name=name)).code == ResponseCode.INVALID_PARAMETER
        assert (await beat(peer, name)).code == ResponseCode.SUCCESS
        answer = await peer.ask(PULL, pulling(consumer_group=name))
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert name not in server.broker.catalog.groups


@pytest.mark.parametrize("name", ["x", "%shop", "A-z_0|9", "x" * 248])
async def test_a_group_with_an_allowed_name_is_created(tmp_path: Path, name: str) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert (await put_group(peer, name=name)).code == ResponseCode.SUCCESS
        assert name in server.broker.catalog.groups


async def test_a_group_may_be_in_a_namespace(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(), b"x")
        assert (await beat(peer, "space%shop")).code == ResponseCode.SUCCESS
        assert server.broker.topics.named("%RETRY%space%shop").read_queue_count == 1
        answer = await peer.ask(PULL, pulling(consumer_group="space%shop"))
        assert answer.code == ResponseCode.SUCCESS
        assert {"space%shop"} == set(server.broker.catalog.groups)


async def test_an_owner_may_stop_a_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(), b"x")
        await put_group(peer, may_consume=False)
        assert (await peer.ask(PULL, pulling())).code == ResponseCode.NO_PERMISSION


async def test_an_owner_may_forbid_broadcasts(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(), b"x")
        await put_group(peer, may_broadcast=False)
        await beat(peer, said_model="BROADCASTING")
        assert (await peer.ask(PULL, pulling())).code == ResponseCode.NO_PERMISSION
        await beat(peer, said_model="CLUSTERING")
        assert (await peer.ask(PULL, pulling())).code == ResponseCode.SUCCESS


async def test_an_unknown_group_has_no_offsets(tmp_path: Path) -> None:
    header = UpdateOffsetHeader(consumer_group="shop", topic="orders", queue_id=1, commit_offset=0)
    update = RequestCode.UPDATE_CONSUMER_OFFSET
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(), b"x")
        unknown = await peer.ask(update, header)
        assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        await beat(peer)
        assert (await peer.ask(update, header)).code == ResponseCode.SUCCESS


async def test_members_are_told_of_each_other_unless_the_owner_forbids_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        first, second = [await Peer.to(server.broker_address) for _ in range(2)]
        await put_group(first, is_change_notified=False)
        await beat(first, client_id="a")
        await beat(second, client_id="b")
        await beat(first, client_id="a")
        assert first.kept == second.kept == []
        await put_group(first, is_change_notified=True)
        second.close()
        assert facts(await first.until(lambda frame: frame.code == NOTIFIED)) == {
            "consumerGroup": "shop"
        }


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (SubscriptionBody(topic="orders", expression="a || b"), ResponseCode.SUCCESS),
        (
            SubscriptionBody(topic="orders", expression="a > 1", expression_type="SQL92"),
            ResponseCode.SYSTEM_ERROR,
        ),
        (SubscriptionBody(topic="orders", expression="||"), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ],
)
async def test_a_consumer_learns_at_its_start_that_its_filter_is_not_understood(
    tmp_path: Path, wanted: SubscriptionBody, code: ResponseCode
) -> None:
    body = encode_body(CheckClientRequest(client_id="c1", group="shop", subscription=wanted))
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert (await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body)).code == code


# Heartbeats of the second version: a fingerprint stands for the subscriptions.


async def test_a_fingerprint_stands_for_subscriptions_that_are_known(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)

        async def is_news(**fields: object) -> bool:
            return facts(await beat(peer, **fields))["IS_SUB_CHANGE"] == "true"

        short = {"subscriptions": (), "is_without_subscriptions": True}
        assert await is_news()
        assert await is_news(fingerprint=7)
        assert not await is_news(fingerprint=7)
        assert not await is_news(fingerprint=7, **short)
        await peer.ask(SEND, sending(), b"x")
        by_heartbeat = pulling(sys_flag=0, subscription_version=1)
        assert (await peer.ask(PULL, by_heartbeat)).code == ResponseCode.SUCCESS
        assert await is_news(fingerprint=8)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert await is_news(fingerprint=8, **short), "a broker that restarted must ask for them"
