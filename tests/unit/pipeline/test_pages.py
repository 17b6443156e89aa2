"""Pages that a service serves over HTTP."""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection

import pytest

from escrowmq.client.producer.producer import Producer
from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.service.pages import StatusServer
from escrowmq.pipeline.service.telemetry import Telemetry
from escrowmq.testing.in_process import InProcessBroker
from tests.unit.broker.wire import eventually
from tests.unit.pipeline.conducted import DEADLINE_S, running


def read(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    connection = HTTPConnection(address, timeout=DEADLINE_S)
    connection.request(method, path)
    answer = connection.getresponse()
    try:
        return answer.status, answer.read().decode()
    finally:
        connection.close()


async def test_people_and_prometheus_see_what_was_done(
    broker: InProcessBroker, producer: Producer
) -> None:
    producer.send_half("orders", b"1")
    broker.advance(seconds=7)
    with running(broker) as one:
        await eventually(lambda: one.facts.settle.runs)
        pages = StatusServer("127.0.0.1", 0, one.facts)
        code, text = read(pages.address, "/status")
        status = json.loads(text)
        assert (code, status["settle"]["last"]["asked"]) == (200, 2)
        assert status["brokers"][broker.broker_address]["undecided"] == 1
        code, text = read(pages.address, "/metrics?x=1")
        assert code == 200
        assert "# TYPE escrowmq_pipeline_settle_asked_total counter\n" in text
        assert "\nescrowmq_pipeline_settle_asked_total 2\n" in text
        label = f'{{broker="{broker.broker_address}"}}'
        assert f"\nescrowmq_pipeline_broker_undecided{label} 1\n" in text
        assert read(pages.address, "/status", "HEAD") == (200, "")
        code, text = read(pages.address, "/")
        assert (code, 'href="/status"' in text, 'href="/metrics"' in text) == (200, True, True)
        assert read(pages.address, "/odd") == (404, "there are / /status /metrics\n")
        pages.close()


def test_a_port_that_is_taken_is_said_to_be() -> None:
    telemetry = Telemetry(master="local[*]", started_at_ms=0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RequestRefused, match=r"pipeline\.http_port") as refused:
            StatusServer("127.0.0.1", port, telemetry)
    assert refused.value.code == "address_unusable"
