"""Stock clients at work while their broker goes down and comes back.

Each producer is a thread that sends one message after another, each with its own key, and records
what its client reported. The expected log follows from that:

- an ordinary message that was acknowledged: once; one that failed: at most once, since the client's
  own retries are off;
- a transaction whose local transaction ran: once if that committed, never if it rolled back,
  by whatever path the broker learned it; one whose local transaction never ran: never.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.interop.clients import Producer, PushConsumer, TransactionProducer
from tests.interop.errors import InteropError, WaitedInVain
from tests.interop.peer import Peer
from tests.interop.scenario import eventually
from tests.interop.values import Answer, LocalTransaction, Message, once_executed

QUEUES = 4
#: The pause after a failure, so that a worker does not flood a broker that is down.
PAUSE_S = 0.1
#: Covers a client's own timeouts and retries.
STOP_TIMEOUT_S = 90
GO_ON_TIMEOUT_S = 60

#: The local transaction's first answer, and its database's answer to a back-check.
SCRIPTS = (
    (Answer.COMMIT, Answer.COMMIT),
    (Answer.ROLLBACK, Answer.ROLLBACK),
    (Answer.UNKNOWN, Answer.COMMIT),
    (Answer.UNKNOWN, Answer.ROLLBACK),
)


class Worker:
    """A thread that sends until it is told to stop."""

    def __init__(self, name: str, topic: str) -> None:
        self.name = name
        self.topic = topic
        self.acknowledged: list[str] = []
        self.failed: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(STOP_TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self.name} hangs"

    def send(self, number: int, message: Message) -> None:
        raise NotImplementedError

    def _work(self) -> None:
        for number in itertools.count():
            if self._stopping.is_set():
                return
            message = Message(topic=self.topic, keys=f"{self.name}-{number}")
            assert message.keys is not None
            try:
                self.send(number, message)
            except InteropError:
                self.failed.append(message.keys)
                self._stopping.wait(PAUSE_S)
            else:
                self.acknowledged.append(message.keys)


class OrdinaryWorker(Worker):
    """Sends ordinary messages, queue after queue."""

    def __init__(self, peer: Peer, producer: Producer, topic: str) -> None:
        super().__init__(f"{peer.name}-ordinary", topic)
        self._producer = producer

    def send(self, number: int, message: Message) -> None:
        self._producer.send_to_queue(message, number % QUEUES)


class TransactionWorker(Worker):
    """Sends transactions with every combination of outcomes."""

    def __init__(self, peer: Peer, producer: TransactionProducer, topic: str) -> None:
        super().__init__(f"{peer.name}-transaction", topic)
        self._peer = peer
        self._producer = producer
        self._outcomes: dict[str, Answer] = {}

    def send(self, number: int, message: Message) -> None:
        local, outcome = SCRIPTS[number % len(SCRIPTS)]
        assert message.keys is not None
        self._outcomes[message.keys] = outcome
        checks = [once_executed(outcome)]
        self._producer.send_in_transaction(message, local=local, checks=checks)

    def committed(self) -> set[str]:
        """Return the keys whose database committed."""
        executed = self._peer.events.of(
            LocalTransaction, lambda event: event.client == self._producer.name
        )
        return {event.key for event in executed if self._outcomes[event.key] is Answer.COMMIT}


@dataclass(frozen=True, slots=True)
class Storm:
    """All producers and consumers of a test."""

    ordinary: list[OrdinaryWorker] = field(default_factory=list)
    transactions: list[TransactionWorker] = field(default_factory=list)
    consumers: dict[str, PushConsumer] = field(default_factory=dict)

    @property
    def workers(self) -> list[Worker]:
        return [*self.ordinary, *self.transactions]

    def goes_on(self, count: int, readers: Iterable[str]) -> None:
        """Wait until each producer has sent this many more, and these consumers got messages."""
        sent = {worker: len(worker.acknowledged) + count for worker in self.workers}
        seen = {name: len(self.consumers[name].received()) for name in readers}

        def late() -> list[str]:
            senders = [one.name for one, goal in sent.items() if len(one.acknowledged) < goal]
            receivers = [
                name for name, had in seen.items() if len(self.consumers[name].received()) == had
            ]
            return senders + receivers

        try:
            eventually(lambda: not late(), "progress of everybody", timeout_s=GO_ON_TIMEOUT_S)
        except WaitedInVain:
            raise WaitedInVain(f"progress of {late()}", GO_ON_TIMEOUT_S, []) from None

    def required(self) -> set[str]:
        """Return the keys that must be in the log."""
        keys = {key for worker in self.ordinary for key in worker.acknowledged}
        return keys.union(*(worker.committed() for worker in self.transactions))

    def possible(self) -> set[str]:
        """Return the keys of failed sends, which may or may not be in the log."""
        return {key for worker in self.ordinary for key in worker.failed}


def wait_for_all(storm: Storm, log: Callable[[], int], *, timeout_s: float) -> None:
    """Wait until each consumer has got as many different messages as the log has."""

    def complete() -> bool:
        count = log()
        return all(
            len({(one.queue, one.queue_offset) for one in consumer.received()}) >= count
            for consumer in storm.consumers.values()
        )

    eventually(complete, "every message at every consumer", timeout_s=timeout_s)
