"""Official 5.x clients at work while their broker goes down and comes back.

Each sender is a thread that sends one transaction after another, each with its own key. Each taker
is a thread that receives messages of one common group and acknowledges them at once.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.interop.errors import InteropError, PeerRefused, WaitedInVain
from tests.interop.grpc_clients.clients import Draft, GrpcProducer, SimpleConsumer
from tests.interop.scenario import eventually
from tests.interop.values import Answer

#: How the transactions end, in turn.
ENDS = ("commit", "rollback", "leave")
#: The pause after a failure, so that a thread does not flood a broker that is down.
PAUSE_S = 0.1
#: Covers a client's own timeouts and retries.
STOP_TIMEOUT_S = 90
GO_ON_TIMEOUT_S = 120


class Worker:
    """A thread that works until it is told to stop."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: The error that ended the thread, if one did.
        self.broken: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(STOP_TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self.name} hangs"
        if self.broken is not None:
            raise self.broken

    def work(self, number: int) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._stopping.is_set():
                    return
                self.work(number)
        except InteropError as broken:
            self.broken = broken

    def _pause(self) -> None:
        self._stopping.wait(PAUSE_S)


class Sender(Worker):
    """Sends transactions that end in every way, and repeats each until the client took it."""

    def __init__(self, name: str, topic: str, producer: GrpcProducer) -> None:
        super().__init__(name)
        self._topic = topic
        self._producer = producer
        #: All producers of the topic are one group: the broker may ask any of them.
        self.members: Sequence[GrpcProducer] = ()
        #: Keys that the client took, and how each transaction ended.
        self.taken: dict[str, str] = {}
        #: Keys that were sent more than once, because an answer was lost.
        self.repeated: set[str] = set()

    def work(self, number: int) -> None:
        key, end = f"{self.name}-{number}", ENDS[number % len(ENDS)]
        checks = checks_after(end)
        for member in self.members:
            member.script(key, checks)
        draft = Draft(topic=self._topic, key=key)
        while True:
            try:
                self._producer.send_in_transaction(draft, end, checks=checks)
            except PeerRefused:
                self.repeated.add(key)
                self._pause()
            else:
                self.taken[key] = end
                return


def checks_after(end: str) -> list[Answer]:
    """Return the answers of a database in which the transaction ended like this."""
    return [Answer.ROLLBACK if end == "rollback" else Answer.COMMIT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reception:
    """A message that a receive brought, and when that receive began."""

    message_id: str
    key: str
    began: float


class Taker(Worker):
    """Receives and acknowledges; ``tells_refusal`` says whether an acknowledgement can fail."""

    def __init__(self, name: str, consumer: SimpleConsumer, *, tells_refusal: bool) -> None:
        super().__init__(name)
        self._consumer = consumer
        self._tells_refusal = tells_refusal
        self.received: list[Reception] = []
        #: By message id: when its acknowledgement was confirmed.
        self.acked_at: dict[str, float] = {}

    def work(self, number: int) -> None:
        del number
        began = time.monotonic()
        try:
            found = self._consumer.receive()
        except PeerRefused:
            self._pause()
            return
        for taken in found:
            message_id = taken.view.message_id
            self.received.append(Reception(message_id=message_id, key=taken.key, began=began))
            try:
                self._consumer.ack(taken)
            except PeerRefused:
                continue
            if self._tells_refusal:
                self.acked_at[message_id] = time.monotonic()


@dataclass(frozen=True, slots=True)
class Storm:
    """All senders and takers of a test."""

    senders: list[Sender] = field(default_factory=list)
    takers: list[Taker] = field(default_factory=list)

    def start(self) -> None:
        for worker in (*self.senders, *self.takers):
            worker.start()

    def goes_on(self, count: int) -> None:
        """Wait until each sender has sent this many more."""
        goals = {sender: len(sender.taken) + count for sender in self.senders}

        def has_gone_on() -> bool:
            for worker in (*self.senders, *self.takers):
                if worker.broken is not None:
                    raise worker.broken
            return all(len(sender.taken) >= goal for sender, goal in goals.items())

        eventually(has_gone_on, "progress of every sender", timeout_s=GO_ON_TIMEOUT_S)

    def required(self) -> set[str]:
        """Return the keys that must be visible in the end."""
        return {
            key for sender in self.senders for key, end in sender.taken.items() if end != "rollback"
        }

    def repeated(self) -> set[str]:
        """Return the keys of which more than one message may be visible."""
        return set().union(*(sender.repeated for sender in self.senders))

    def taken(self) -> set[str]:
        """Return the keys that takers have received so far."""
        return {one.key for taker in self.takers for one in taker.received}

    def wait_for_all(self, required: set[str], *, timeout_s: float) -> None:
        """Wait until takers have received each of these keys."""
        try:
            eventually(lambda: required <= self.taken(), "every key", timeout_s=timeout_s)
        except WaitedInVain:
            missing = sorted(required - self.taken())
            raise WaitedInVain(f"messages {missing}", timeout_s, []) from None

    def received_after_ack(self) -> list[Reception]:
        """Return the receptions of messages whose acknowledgement had been confirmed before."""
        acked_at = {
            message_id: at for taker in self.takers for message_id, at in taker.acked_at.items()
        }
        return [
            one
            for taker in self.takers
            for one in taker.received
            if one.began > acked_at.get(one.message_id, one.began)
        ]
