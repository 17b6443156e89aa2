"""Dead letters of groups that read by pop.

The dead letter and the acknowledgement of its original are one frame. While that frame is on its
way to the disk, the original counts as in flight; if the write fails, it becomes visible again.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from escrowmq.broker.state.create_first import CreateFirst
from escrowmq.broker.state.sent_again import sent_again
from escrowmq.broker.state.topics import dlq_topic
from escrowmq.broker.write.inbox import error_of
from escrowmq.protocol.message.stored_message import decode
from escrowmq.transaction.commands import Command, Decision
from escrowmq.transaction.pop_commands import Acknowledge, BuryMessages, PopAcks

if TYPE_CHECKING:
    from escrowmq.broker.pop.flights import QueueFlights
    from escrowmq.broker.pop.places import Told
    from escrowmq.broker.state.queues import Queues
    from escrowmq.broker.state.topics import Topics
    from escrowmq.broker.write.broker_clock import BrokerClock
    from escrowmq.broker.write.writer import Writer

BURYING_MS = 60_000
"""How long a message stays in flight while its dead letter is written."""


@dataclass(frozen=True, slots=True)
class Grave:
    """A message that becomes a dead letter.

    ``number`` is that of its queue, which also names the topic's incarnation.
    """

    group: str
    topic: str
    queue_id: int
    number: int
    offset: int
    flights: QueueFlights


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Writes dead letters. Use it from one event loop only."""

    writer: Writer
    clock: BrokerClock
    queues: Queues
    topics: Topics

    def bury(self, grave: Grave, buried: Told, owner: Hashable = None) -> None:
        """Make a message in flight a dead letter; ``buried`` is called once that is durable."""
        now_ms = self.clock.now_ms()
        attempts = grave.flights.attempt_of(grave.offset)
        again = (grave.offset,)
        grave.flights.deliver_again(again, now_ms, now_ms + BURYING_MS, counts=False)
        self._bury(grave, attempts, buried, owner)

    def _bury(
        self,
        grave: Grave,
        attempts: int,
        buried: Told,
        owner: Hashable,
    ) -> None:
        queue = self.queues.get(grave.topic, grave.queue_id)
        pulled = self.queues.pull(
            grave.topic, grave.queue_id, grave.offset, count_max=1, bytes_max=1, codes=None
        )
        acks = PopAcks(grave.number, 0 if queue is None else queue.start, ((grave.offset, 1),))
        acknowledges = Acknowledge(group=grave.group, acks=(acks,))
        command: Command = acknowledges
        name = dlq_topic(grave.group)
        try:
            if pulled.messages:
                message = decode(pulled.messages[0])
                self.topics.for_group(name, 1, self.clock.now_ms())
                dead = sent_again(message, name, attempts=attempts)
                command = BuryMessages(messages=(dead,), acknowledges=acknowledges)
            done = partial(self._done, grave, buried)
        except CreateFirst as wanted:
            command = wanted.command
            done = partial(self._made, grave, attempts, buried, owner)
        self.writer.put(command, done, owner)

    def _made(
        self,
        grave: Grave,
        attempts: int,
        buried: Told,
        owner: Hashable,
        end: Decision | BaseException,
    ) -> None:
        """Continue once the topic for dead letters exists."""
        error = error_of(end)
        if error is None:
            try:
                self._bury(grave, attempts, buried, owner)
            except Exception as failed:  # noqa: BLE001 - the caller is told
                error = failed
        if error is not None:
            buried(error)

    def _done(self, grave: Grave, buried: Told, end: Decision | BaseException) -> None:
        error = error_of(end)
        if error is None:
            grave.flights.finish(grave.offset)
        buried(error)
