"""What a broker must show, may show and must never show, given what it acknowledged.

The model uses true time: the milliseconds that really passed, whatever the broker's clock said.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
RETENTION_MS = 3 * DAY_MS
#: Retention may delete a message this much early, because it may be older than its queue entry.
RETENTION_SLACK_MS = 2 * HOUR_MS
#: How long the model remembers messages that were seen.
REMEMBERED_MS = RETENTION_MS + DAY_MS


class Wrong(AssertionError):
    """The broker broke a promise."""


class Fate(StrEnum):
    """What may happen to a message."""

    #: Acknowledged and committed: consumers must see it.
    VISIBLE = "visible"
    #: A half message of an undecided transaction: consumers must not see it.
    HELD = "held"
    #: Rolled back, or refused: consumers must never see it.
    GONE = "gone"
    #: The broker did not answer: consumers see it once or never.
    UNKNOWN = "unknown"


Queue = tuple[str, int]


@dataclass
class Sent:
    """One sent message."""

    body: str
    topic: str
    #: The incarnation of the topic that it was sent to.
    incarnation: int
    fate: Fate
    sent_at_ms: int
    #: Consumers must not see it before this time, and must see it afterwards.
    due_at_ms: int
    is_seen: bool = False


@dataclass
class Place:
    """A message that was seen in a queue."""

    offset: int
    body: str
    visible_at_ms: int


@dataclass
class Topic:
    """A topic of the model."""

    name: str
    queues: int
    incarnation: int
    #: The last day on which messages are sent to it; -1 if it is never deleted.
    last_day: int
    is_deleted: bool = False


@dataclass
class Half:
    """An undecided transaction of one half message."""

    body: str
    group: str
    #: The broker's answer, which the end of the transaction repeats.
    half_offset: int
    log_offset: int
    unique_key: str
    topic: str
    #: How and on which day it will end.
    is_commit: bool
    ends_on: int
    delay_ms: int = 0


@dataclass
class Group:
    """A consumer group that commits its offsets to the broker."""

    name: str
    topic: str
    last_day: int
    committed: dict[int, int] = field(default_factory=dict)
    #: Queues whose offset the broker may not have written yet.
    lazy: set[int] = field(default_factory=set)
    #: Queues whose only offset may be lost in a crash.
    lost: set[int] = field(default_factory=set)


@dataclass
class Batch:
    """A decided batch of a Spark sink."""

    app_id: str
    query_id: str
    number: int
    attempt: str
    messages: int
    day: int


class Model:
    """Everything that the broker promised."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.messages: dict[str, Sent] = {}
        self.places: dict[Queue, list[Place]] = {}
        #: The auditor's next offset in each queue.
        self.positions: dict[Queue, int] = {}
        self.topics: dict[str, Topic] = {}
        #: The latest incarnation of each topic name.
        self.incarnations: dict[str, int] = {}
        self.halves: list[Half] = []
        self.groups: dict[str, Group] = {}
        #: Groups that are no longer active.
        self.away: list[Group] = []
        self.batches: list[Batch] = []
        #: Decided transactions, which are decided again.
        self.decided: list[Half] = []

    def copy(self) -> Model:
        """Copy the model, for a backup."""
        return deepcopy(self)

    # Messages that are sent.

    def sent(self, body: str, topic: str, fate: Fate, *, delay_ms: int = 0) -> None:
        """Record a sent message, whether the broker answered or not."""
        made = self.topics[topic]
        due_at_ms = self.now_ms + delay_ms
        self.messages[body] = Sent(body, topic, made.incarnation, fate, self.now_ms, due_at_ms)

    def decide(self, half: Half, fate: Fate) -> None:
        """Record a decision."""
        message = self.messages[half.body]
        message.fate = fate
        message.due_at_ms = self.now_ms + half.delay_ms

    def make(self, name: str, queues: int, last_day: int) -> Topic:
        """Record a new topic: it is empty, whatever an earlier topic of this name held."""
        number = self.incarnations.get(name, -1) + 1
        self.incarnations[name] = number
        topic = self.topics[name] = Topic(name, queues, number, last_day)
        for queue_id in range(queues):
            self.positions[name, queue_id] = 0
            self.places[name, queue_id] = []
        return topic

    def delete(self, name: str) -> None:
        """Record that a topic was deleted with all its messages."""
        topic = self.topics.pop(name)
        for queue_id in range(topic.queues):
            del self.positions[name, queue_id], self.places[name, queue_id]
        gone = [one.body for one in self.messages.values() if one.topic == name]
        for body in gone:
            self.messages[body].fate = Fate.GONE

    def is_orphan(self, half: Half) -> bool:
        """Whether the topic that the half message was sent to has been deleted."""
        topic = self.topics.get(half.topic)
        return topic is None or topic.incarnation != self.messages[half.body].incarnation

    # Messages that are seen.

    def see(self, queue: Queue, offset: int, body: str) -> None:
        """Record a message that the auditor received; it reads each queue once."""
        expected = self.positions[queue]
        if offset < expected:
            raise Wrong(f"{body} is at {offset} of {queue}, which was read up to {expected}")
        message = self.messages.get(body)
        if message is None:
            raise Wrong(f"{body} at {offset} of {queue} was never sent, or was forgotten long ago")
        topic = self.topics[queue[0]]
        if (message.topic, message.incarnation) != (topic.name, topic.incarnation):
            raise Wrong(
                f"{body} was sent to {message.topic} {message.incarnation}, "
                f"and is in {topic.name} {topic.incarnation}"
            )
        if message.fate in (Fate.HELD, Fate.GONE):
            raise Wrong(f"{body} at {offset} of {queue} is visible, but it is {message.fate}")
        if message.is_seen:
            raise Wrong(f"{body} is visible twice, now at {offset} of {queue}")
        if self.now_ms < message.due_at_ms:
            early_ms = message.due_at_ms - self.now_ms
            raise Wrong(f"{body} at {offset} of {queue} is visible {early_ms} ms too early")
        message.fate = Fate.VISIBLE
        message.is_seen = True
        self.places[queue].append(Place(offset, body, message.due_at_ms))
        self.positions[queue] = offset + 1

    def see_again(self, queue: Queue, offset: int, body: str) -> None:
        """Check a message that the auditor receives again after it was moved back."""
        known = {place.offset: place.body for place in self.places[queue]}
        if known.get(offset, body) != body:
            raise Wrong(f"{offset} of {queue} was {known[offset]}, and is {body} now")

    def missing(self) -> list[Sent]:
        """Messages that must be visible by now and were not seen."""
        return [
            one
            for one in self.messages.values()
            if one.fate is Fate.VISIBLE and not one.is_seen and one.due_at_ms < self.now_ms
        ]

    def check_again(self, queue: Queue, start: int, found: list[tuple[int, str]]) -> None:
        """Check a queue read from its start: only what retention may delete can be missing."""
        known = {place.offset: place for place in self.places[queue]}
        for offset, body in found:
            place = known.get(offset)
            if place is not None and place.body != body:
                raise Wrong(f"{offset} of {queue} was {place.body}, and is {body} now")
        young_ms = self.now_ms - RETENTION_MS + RETENTION_SLACK_MS
        read = {offset for offset, _ in found}
        for place in self.places[queue]:
            if place.visible_at_ms > young_ms and place.offset not in read:
                raise Wrong(
                    f"{place.body} at {place.offset} of {queue} is gone: the queue starts at "
                    f"{start}, and it was visible for {self.now_ms - place.visible_at_ms} ms"
                )

    def forget(self) -> None:
        """Forget what is far older than retention, so that a year fits into memory."""
        before_ms = self.now_ms - REMEMBERED_MS
        for queue, places in self.places.items():
            self.places[queue] = [one for one in places if one.visible_at_ms > before_ms]
        held = {half.body for half in self.halves}
        self.messages = {
            body: one
            for body, one in self.messages.items()
            if body in held
            or max(one.sent_at_ms, one.due_at_ms)
            > before_ms - 30 * DAY_MS * (not one.is_seen and one.fate is not Fate.GONE)
        }
        self.decided = self.decided[-20:]
        self.batches = self.batches[-20:]
