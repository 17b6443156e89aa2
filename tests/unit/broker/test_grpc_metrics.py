"""The calls of RocketMQ's 5.x clients on the metrics page."""

from __future__ import annotations

from pathlib import Path

from tests.unit.broker.grpc_peer import GrpcPeer, message
from tests.unit.broker.test_http import watched
from tests.unit.broker.test_metrics import scrape


async def test_calls_of_grpc_clients_are_counted_by_method_and_code(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        client = GrpcPeer.of(server)
        await client.send(message())
        await client.send(message("m2", b""))
        page = await scrape(server)
        assert page.value("escrowmq_requests_total", request="SendMessage", outcome="ok") == 1
        refused = {"request": "SendMessage", "outcome": "message_body_empty"}
        assert page.value("escrowmq_requests_total", **refused) == 1
        assert page.value("escrowmq_refusals_total", error="body_empty") == 1
        labels = {"protocol_type": "grpc_v2", "request_code": "SendMessage"}
        for code in ("ok", "message_body_empty"):
            assert page.value("rocketmq_rpc_latency_count", **labels, response_code=code) == 1
