"""Fixtures: a broker in this process, and a producer that is connected to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from escrowmq.client.producer.producer import Producer
from escrowmq.testing.in_process import InProcessBroker


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as started:
        yield started


@pytest.fixture
def producer(broker: InProcessBroker) -> Iterator[Producer]:
    with Producer(broker.address, group="orders") as started:
        yield started
