"""Retry policies of consumer groups: set by mqadmin, kept, told to 5.x clients, and followed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.grpc.names import ms_of
from escrowmq.broker.grpc.renewing import HELD_MS_MAX
from escrowmq.model.catalog import CustomizedBackoff, ExponentialBackoff
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.remoting.admin_headers import GroupHeader
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from tests.unit.broker.grpc_consuming import receive
from tests.unit.broker.grpc_peer import GrpcPeer, message, subscribing
from tests.unit.broker.wire import Peer, clock_of, serving

EXPONENTIAL = {
    "type": "EXPONENTIAL",
    "exponentialRetryPolicy": {"initial": 1_500, "max": 9_000, "multiplier": 3},
}
CUSTOMIZED = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000, 2_500]}}


async def put(peer: Peer, policy: dict[str, Any] | None, **fields: object) -> int:
    """Set a group as mqadmin updateSubGroup does; return the code of the answer."""
    config = {"groupName": "readers", "retryMaxTimes": 4, **fields}
    if policy is not None:
        config["groupRetryPolicy"] = policy
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    return (await peer.ask(code, body=json.dumps(config).encode())).code


async def told_policy(peer: Peer) -> dict[str, Any]:
    """Return a group's policy as mqadmin reads it."""
    answer = await peer.ask(
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader(consumer_group="readers")
    )
    policy: dict[str, Any] = json.loads(answer.body)["groupRetryPolicy"]
    return policy


async def settings(peer: GrpcPeer) -> grpc.RetryPolicy:
    """Subscribe, and return the policy that the broker tells."""
    call = peer.open()
    assert call.events is not None
    said = grpc.TelemetryCommand(settings=subscribing("readers", "orders"))
    call.events.on_message(said.SerializeToString())
    policy: grpc.RetryPolicy = (await call.take(grpc.TelemetryCommand)).settings.backoff_policy
    return policy


async def test_a_policy_is_kept_and_told_to_tools_and_clients(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert await put(peer, EXPONENTIAL) == ResponseCode.SUCCESS
    async with serving(tmp_path) as server:
        peer, client = await Peer.to(server.broker_address), GrpcPeer.of(server)
        assert await told_policy(peer) == EXPONENTIAL
        policy = await settings(client)
        waits = policy.exponential_backoff
        assert policy.max_attempts == 5
        assert (ms_of(waits.initial), ms_of(waits.max), waits.multiplier) == (1_500, 9_000, 3.0)
        assert await put(peer, CUSTOMIZED) == ResponseCode.SUCCESS
        assert await told_policy(peer) == CUSTOMIZED
        custom = (await settings(client)).customized_backoff
        assert [ms_of(one) for one in custom.next] == [1_000, 2_500]


@pytest.mark.parametrize(
    "policy",
    [
        None,
        {"type": "CUSTOMIZED"},
        {"type": "EXPONENTIAL"},
        {"type": "EXPONENTIAL", "customizedRetryPolicy": {"next": [5]}},
    ],
)
async def test_without_a_policy_the_delay_levels_stay(
    tmp_path: Path, policy: dict[str, Any] | None
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert await put(peer, EXPONENTIAL) == ResponseCode.SUCCESS
        assert await put(peer, policy) == ResponseCode.SUCCESS
        custom = (await settings(GrpcPeer.of(server))).customized_backoff
        assert [one.seconds for one in custom.next][:3] == [10, 30, 60]
        assert await told_policy(peer) == {"type": "CUSTOMIZED"}


@pytest.mark.parametrize(
    "policy",
    [
        {"type": "LINEAR"},
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": []}},
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [-1]}},
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [12 * 3_600_000 + 1]}},
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1] * 65}},
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 0}},
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"max": 10**18}},
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"multiplier": 0}},
    ],
)
async def test_a_policy_beyond_the_limits_is_refused(
    tmp_path: Path, policy: dict[str, Any]
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert await put(peer, policy) == ResponseCode.INVALID_PARAMETER
        assert server.broker.catalog.group("readers") is None


def test_waits_of_each_retry() -> None:
    grows = ExponentialBackoff(initial_ms=1_500, max_ms=9_000, multiplier=3)
    assert [grows.wait_ms(retry) for retry in (0, 1, 2, 3, 10**6)] == [
        1_500,
        1_500,
        4_500,
        9_000,
        9_000,
    ]
    assert ExponentialBackoff(initial_ms=7, max_ms=9, multiplier=1).wait_ms(50) == 7
    listed = CustomizedBackoff(waits_ms=(1, 5))
    assert [listed.wait_ms(retry) for retry in (0, 1, 2, 3)] == [1, 1, 5, 5]


async def test_a_message_that_a_consumer_held_for_too_long_waits_by_the_policy(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        assert await put(await Peer.to(server.broker_address), CUSTOMIZED) == ResponseCode.SUCCESS
        await peer.tell(subscribing("readers", "orders"))
        await peer.send(message())
        clock = clock_of(server)
        for attempt, wait_ms in ((1, 1_000), (2, 2_500), (3, 2_500)):
            (told,) = await receive(peer, auto_renew=True)
            assert told.system_properties.delivery_attempt == attempt
            clock.advance(ms=HELD_MS_MAX + wait_ms - 1)
            assert await receive(peer, auto_renew=True) == []
            clock.advance(ms=2)
