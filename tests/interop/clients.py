"""Handles on the clients that a peer runs for us."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tests.interop.lines import WAIT_TIMEOUT_S, LineProcess
from tests.interop.values import (
    Answer,
    BackCheck,
    Delivered,
    LocalTransaction,
    Message,
    Received,
    Sent,
)

#: Messages that one pull of a whole log asks for.
LOG_PIECE = 1_000


class Client:
    """One client of a peer."""

    def __init__(self, lines: LineProcess, name: str, client_id: str) -> None:
        self._lines = lines
        self.name = name
        self.client_id = client_id

    def stop(self) -> None:
        """Shut the client down cleanly: it unregisters from the broker."""
        self._call("stop")

    def _call(self, command: str, **fields: object) -> dict[str, Any]:
        return self._lines.call(command, {"client": self.name, **fields})


class Producer(Client):
    """A client that sends messages."""

    def send(self, message: Message) -> Sent:
        return self._send([message], mode="sync")

    def send_async(self, message: Message) -> Sent:
        """Send through the client's callback; return when it has been called."""
        return self._send([message], mode="async")

    def send_oneway(self, message: Message) -> None:
        self._send([message], mode="oneway")

    def send_batch(self, messages: Sequence[Message]) -> Sent:
        return self._send(messages)

    def send_to_queue(self, message: Message, queue: int) -> Sent:
        """Send through the client's queue selector, as for ordered messages."""
        return self._send([message], queue=queue)

    def _send(self, messages: Sequence[Message], **how: object) -> Sent:
        return Sent.of(self._call("send", messages=[message.json() for message in messages], **how))


class TransactionProducer(Producer):
    """Sends in transactions, with a listener that follows the script for each key."""

    def script(self, key: str, *, local: str = Answer.UNKNOWN, checks: Sequence[str] = ()) -> None:
        """Set the answers for this key; the last check answer is repeated from then on."""
        self._call("script", key=key, local=str(local), checks=[str(check) for check in checks])

    def send_in_transaction(
        self, message: Message, *, local: str, checks: Sequence[str] = ()
    ) -> Sent:
        return self.begin_transaction(message, local=local, checks=checks).result(WAIT_TIMEOUT_S)

    def begin_transaction(
        self, message: Message, *, local: str, checks: Sequence[str] = ()
    ) -> Future[Sent]:
        """Do the same without waiting, for a local transaction that hangs."""
        assert message.keys is not None, "the script goes by key"
        self.script(message.keys, local=local, checks=checks)
        answer = self._lines.submit(
            "send_in_transaction", {"client": self.name, "message": message.json()}
        )
        sent: Future[Sent] = Future()
        answer.add_done_callback(lambda done: _pass_on(done, sent))
        return sent

    def release(self, key: str, answer: Answer) -> None:
        """Let the listener that hangs for this key answer."""
        self._call("release", key=key, answer=str(answer))

    def wait_for_local(self, key: str, *, timeout_s: float = WAIT_TIMEOUT_S) -> LocalTransaction:
        """Wait until the local transaction runs, which proves that the half message is stored."""
        return self._lines.events.wait_for(
            LocalTransaction,
            lambda event: event.client == self.name and event.key == key,
            timeout_s=timeout_s,
        )

    def wait_for_check(
        self, key: str, number: int = 1, *, timeout_s: float = WAIT_TIMEOUT_S
    ) -> BackCheck:
        return self._lines.events.wait_for(
            BackCheck,
            lambda event: event.client == self.name and event.key == key and event.number == number,
            timeout_s=timeout_s,
        )

    def checks(self, key: str) -> list[BackCheck]:
        """Return the back-checks so far."""
        return self._lines.events.of(
            BackCheck, lambda event: event.client == self.name and event.key == key
        )


def _pass_on(done: Future[dict[str, Any]], to: Future[Sent]) -> None:
    problem = done.exception()
    if problem is not None:
        to.set_exception(problem)
    else:
        to.set_result(Sent.of(done.result()))


class PushConsumer(Client):
    """Reports each message that its listener is given."""

    def wait_for(
        self,
        count: int = 1,
        where: Callable[[Received], bool] = lambda _: True,
        *,
        accepted: bool | None = None,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> list[Received]:
        """Wait until there are this many deliveries: accepted, refused, or both."""
        found = self._lines.events.wait_for_many(
            Delivered,
            lambda event: (
                event.client == self.name
                and accepted in (None, event.accepted)
                and where(event.message)
            ),
            count=count,
            timeout_s=timeout_s,
        )
        return [event.message for event in found]

    def received(self) -> list[Received]:
        """Return the messages received so far."""
        found = self._lines.events.of(Delivered, lambda event: event.client == self.name)
        return [event.message for event in found]


class LitePullConsumer(Client):
    """A consumer that polls."""

    def poll(self, timeout_ms: int) -> list[Received]:
        answer = self._call("poll", timeout_ms=timeout_ms)
        return [Received.of(fields) for fields in answer["messages"]]

    def seek(self, topic: str, queue: int, to: int | str) -> None:
        """Seek to an offset, ``"begin"`` or ``"end"``."""
        self._call("seek", topic=topic, queue=queue, to=str(to))

    def commit(self) -> None:
        self._call("commit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """The result of one pull."""

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[Received]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """The offsets of one queue."""

    min: int
    max: int
    at_time: int
    earliest_stored_at_ms: int
    committed: int


class PullConsumer(Client):
    """A consumer that names each offset itself."""

    def queues(self, topic: str) -> list[int]:
        queues: list[int] = self._call("queues", topic=topic)["queues"]
        return queues

    def pull(
        self, topic: str, queue: int, offset: int, *, max_count: int = 32, expression: str = "*"
    ) -> Pulled:
        answer = self._call(
            "pull", topic=topic, queue=queue, offset=offset, max=max_count, expression=expression
        )
        messages = [Received.of(fields) for fields in answer.pop("messages")]
        return Pulled(messages=messages, **answer)

    def pull_all(self, topic: str, *, expression: str = "*") -> list[Received]:
        """Return all messages, read with the wheel's own loop."""
        answer = self._call("pull_all", topic=topic, expression=expression)
        return [Received.of(fields) for fields in answer["messages"]]

    def read_log(self, topic: str) -> list[Received]:
        """Return all messages, read in pieces: a client's process has little memory."""
        found: list[Received] = []
        for queue in self.queues(topic):
            pulled = self.pull(topic, queue, 0, max_count=LOG_PIECE)
            found += pulled.messages
            while pulled.next_offset < pulled.max_offset:
                pulled = self.pull(topic, queue, pulled.next_offset, max_count=LOG_PIECE)
                found += pulled.messages
        return found

    def offsets(self, topic: str, queue: int, *, at_ms: int) -> Offsets:
        return Offsets(**self._call("offsets", topic=topic, queue=queue, at_ms=at_ms))
