"""Consumers and listeners for tests of our own SDK, on any broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from escrowmq.client.consumer.consumer import Consumer
from escrowmq.client.messages.messages import Message, Received
from escrowmq.model.errors import RequestRefused
from escrowmq.model.resolution import Resolution
from tests.interop.scenario import Broker, fresh

ARRIVE_S = 30.0


class Heard:
    """The messages that a consumer's handler was given, in order."""

    def __init__(self) -> None:
        self.messages: list[Received] = []
        self._came = threading.Condition()

    def hear(self, message: Received) -> None:
        with self._came:
            self.messages.append(message)
            self._came.notify_all()

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    def wait(self, is_enough: Callable[[list[bytes]], bool]) -> list[bytes]:
        with self._came:
            assert self._came.wait_for(lambda: is_enough(self.bodies), ARRIVE_S), self.bodies
            return self.bodies

    def until(self, body: bytes) -> list[bytes]:
        """Wait for this body; return all bodies that have come."""
        return self.wait(lambda bodies: body in bodies)


@contextmanager
def hearing(
    broker: Broker, topic: str, tag: str = "*", *, is_ordered: bool = False
) -> Iterator[Heard]:
    heard = Heard()
    # One at a time: two threads could record messages in another order than they came.
    consumer = Consumer(broker.name_server, fresh("ears"), ordered=is_ordered, concurrency=1)
    consumer.subscribe(topic, tag)(heard.hear)
    with consumer:
        yield heard


@contextmanager
def refused(code: str) -> Iterator[None]:
    with pytest.raises(RequestRefused) as caught:
        yield
    assert caught.value.code == code


class OutOfStock(Exception):
    pass


@contextmanager
def failing() -> Iterator[None]:
    with pytest.raises(OutOfStock):
        yield


class Listener:
    """Knows no resolution at first, and has one when it is asked again."""

    def __init__(self) -> None:
        self.asked: list[Received] = []

    def execute_local_transaction(self, message: Message, arg: object) -> Resolution | None:
        assert message.body in (b"yes", b"no", b"at once")
        return arg if isinstance(arg, Resolution) else None

    def check_local_transaction(self, message: Received) -> Resolution:
        self.asked.append(message)
        if self.times_asked(message.body) == 1:
            return Resolution.UNKNOWN
        return Resolution.COMMIT if message.body == b"yes" else Resolution.ROLLBACK

    def times_asked(self, body: bytes) -> int:
        return sum(one.body == body for one in self.asked)
