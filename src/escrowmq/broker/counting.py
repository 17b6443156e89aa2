"""What happened since the broker started, as numbers: added up where it happens, read by a scrape.

On the way of a message or a request nothing is done but to add to numbers that are already there.
What is durable is counted by the writer, a batch at a time, from the records themselves: so a count
never tells of what may be lost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from escrowmq.broker.messages import SHARDING_MARK
from escrowmq.broker.own_transactions import BY_HAND
from escrowmq.broker.topics import DLQ_PREFIX
from escrowmq.model.event_log import event_log
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.limits import NAME_CHARS_MAX
from escrowmq.protocol.properties import RETRY_TOPIC, find_property
from escrowmq.transaction.commands import DecideBatch, End, Verdict, Verdicts
from escrowmq.transaction.records import (
    BatchDecided,
    Decided,
    DecidedMany,
    Parked,
    Prepared,
    Resumed,
    Scheduled,
    Stored,
)
from escrowmq.transaction.states import Resolution, State

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    from escrowmq.broker.inbox import Waiting
    from escrowmq.model.message import Message
    from escrowmq.model.message_columns import Numbers
    from escrowmq.store.store import Store
    from escrowmq.transaction.commands import Command, Decision
    from escrowmq.transaction.records import Placed, Record

log = event_log(__name__)

#: RocketMQ's bounds: of message sizes in bytes, of a commit's age in seconds, of answers in ms.
SIZE_BOUNDS = (1_024, 4_096, 524_288, 1_048_576, 2_097_152, 4_194_304)
FINISH_BOUNDS = (5, 60, 600, 3_600, 43_200, 86_400)
RPC_BOUNDS = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)
FLUSH_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

#: More than this of one request are counted by the column.
FEW = 16
#: Pairs of topic and group whose messages are counted apart; those beyond share one count.
OUT_MAX = 10_000
OTHERS = "(others)"
#: Who can decide.
SOURCES = ("producer", "check", "settle", "batch", "hand")
#: RocketMQ's names of the types of messages.
NORMAL, FIFO, DELAY, TRANSACTION = "normal", "fifo", "delay", "transaction"
COMMITTED, ROLLED_BACK = State.COMMITTED.label, State.ROLLED_BACK.label
# As a plain number, and texts above: an enum is compared and hashed by a call.
_COMMITTED = int(State.COMMITTED)


class Histogram:
    """How many values lie at or below each bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        #: Those at or below a bound and above the one before it; the last ones are above all.
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, or many equal ones."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def add_all(self, values: Numbers) -> None:
        """Count many values."""
        places = np.searchsorted(self.bounds, values)
        for at, count in enumerate(np.bincount(places, minlength=len(self.counts)).tolist()):
            self.counts[at] += count
        self.total += float(values.sum())


class Out:
    """What one group was given of one topic."""

    __slots__ = ("bytes", "messages", "pulled")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        #: By queue: the next offset after what was given.
        self.pulled: dict[int, int] = {}

    def add(self, queue_id: int, messages: Sequence[bytes], next_offset: int) -> None:
        """Some were given."""
        self.messages += len(messages)
        self.bytes += sum(map(len, messages))
        self.pulled[queue_id] = next_offset


class OfTopic:
    """What came in for one topic, and what became of its half messages."""

    __slots__ = ("committed", "finished", "rolled_back", "sizes")

    def __init__(self) -> None:
        #: Of messages as they were stored, by type.
        self.sizes: dict[str, Histogram] = {}
        self.committed = 0
        self.rolled_back = 0
        #: After how many seconds half messages were committed.
        self.finished: Histogram | None = None

    def size(self, kind: str) -> Histogram:
        """Where messages of this type are counted."""
        found = self.sizes.get(kind)
        if found is None:
            found = self.sizes[kind] = Histogram(SIZE_BOUNDS)
        return found

    def commit(self, age_s: int, count: int) -> None:
        """Count half messages of this age."""
        self.committed += count
        finished = self.finished
        if finished is None:
            finished = self.finished = Histogram(FINISH_BOUNDS)
        finished.counts[bisect_left(FINISH_BOUNDS, age_s)] += count
        finished.total += age_s * count


class _ByQueue(dict[int, OfTopic]):
    """By the number of a queue; all queues of a topic share theirs."""

    def __init__(self, store: Store, topics: dict[str, OfTopic]) -> None:
        super().__init__()
        self._store = store
        self._topics = topics

    def __missing__(self, queue: int) -> OfTopic:
        topic = self._store.core.names.named(queue).topic
        found = self[queue] = self._topics.setdefault(topic, OfTopic())
        return found


class Rpcs:
    """Requests by code, answer and how long it took."""

    def __init__(self) -> None:
        #: Those that are counted by their codes; all others share one count.
        self.codes: Container[int] = ()
        #: By code, answer and flags, in one number.
        self.latencies: dict[int, Histogram] = {}
        #: By the codes of errors.
        self.refused: Counter[str] = Counter()

    def note(self, code: int, response: int, began: float, flags: int) -> None:
        """One was answered; with ``perf_counter`` as it was when it came."""
        key = (code << 24) | (response << 2) | flags
        known = self.latencies.get(key)
        if known is None:
            if code not in self.codes:
                key = (NO_CODE << 24) | (response << 2) | flags
            known = self.latencies.setdefault(key, Histogram(RPC_BOUNDS))
        # Not by ``add``: a call takes as long as all the rest.
        took_ms = (perf_counter() - began) * 1_000
        known.counts[bisect_left(RPC_BOUNDS, took_ms)] += 1
        known.total += took_ms


#: Stands for every request that nobody knows.
NO_CODE = 0
#: Bits of a request: nobody waits for its answer; its answer had to wait.
ONE_WAY = 1
LONG_POLL = 2


def parts_of(key: int) -> tuple[int, int, int]:
    """Request code, response code and flags of a key."""
    return key >> 24, (key >> 2) & 0x3FFFFF, key & 3


class Counts:
    """Everything that is counted in a broker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.rpcs = Rpcs()
        self.topics: dict[str, OfTopic] = {}
        self._queues = _ByQueue(store, self.topics)
        #: By group and topic.
        self.out: dict[tuple[str, str], Out] = {}
        #: Messages that a group could never handle, by group and the topic that they came from.
        self.dead: Counter[tuple[str, str]] = Counter()
        #: Transactions, by who decided and how; answers to checks; outcomes of verdicts.
        #: All that there can be from the start, so that the first one is seen as a change.
        self.decisions = Counter(
            {(source, end): 0 for source in SOURCES for end in (COMMITTED, ROLLED_BACK)}
        )
        self.answers = Counter({resolution.value: 0 for resolution in Resolution})
        self.verdicts = Counter({outcome.value: 0 for outcome in VerdictOutcome})
        self.parked = 0
        self.resumed = 0
        self._has_failed = False
        self._by_record: dict[type[Record], Callable[[Any, Decision, Command], None]] = {
            Prepared: self._prepared,
            Stored: self._stored,
            Scheduled: self._scheduled,
            Decided: self._decided,
            DecidedMany: self._many,
            BatchDecided: self._batch,
            Parked: self._parked,
            Resumed: self._resumed,
        }

    def given(self, group: str, topic: str) -> Out:
        """Where messages are counted that a group is given."""
        key = (group, topic)
        out = self.out.get(key)
        if out is None:
            if len(self.out) >= OUT_MAX:
                key = (OTHERS, OTHERS)
            out = self.out.setdefault(key, Out())
        return out

    def forget(self, topic: str, queues: Iterable[int]) -> None:
        """A topic is gone, and with it what was counted for it."""
        self.topics.pop(topic, None)
        for queue in queues:
            self._queues.pop(queue, None)
        for key in [key for key in self.out if key[1] == topic]:
            del self.out[key]

    def forget_group(self, group: str) -> None:
        """A consumer group is gone: others can be counted in its place."""
        counted: tuple[dict[tuple[str, str], Any], ...] = (self.out, self.dead)
        for counts in counted:
            for key in [key for key in counts if key[0] == group]:
                del counts[key]

    def durable(self, batch: Sequence[Waiting], decisions: Sequence[Decision]) -> None:
        """Count a batch that is on disk."""
        try:
            for waiting, decision in zip(batch, decisions, strict=True):
                command = waiting.command
                if type(command) is End and command.from_check:
                    self.answers[command.resolution.value] += 1
                for record in decision.records:
                    count = self._by_record.get(type(record))
                    if count is not None:
                        count(record, decision, command)
        except Exception:
            # The writer must go on: a number that is not right is no reason to stop.
            if not self._has_failed:
                log.exception("counting_failed", extra={"decisions": len(decisions)})
            self._has_failed = True

    def _prepared(self, record: Prepared, *_: object) -> None:
        placed = record.placed
        sizes = placed.sizes
        if len(sizes) == 1:
            # As nearly all are.
            self._queues[placed.queues[0]].size(TRANSACTION).add(sizes[0])
        else:
            self._count_halves(placed)

    def _stored(self, record: Stored, decision: Decision, _: object) -> None:
        self._count_plain(record.placed, decision.messages, NORMAL)

    def _scheduled(self, record: Scheduled, decision: Decision, _: object) -> None:
        self._count_plain(record.placed, decision.messages, DELAY)

    def _count_plain(self, placed: Placed, messages: Sequence[Message], usual: str) -> None:
        for queue, size, message in zip(placed.queues, placed.sizes, messages, strict=True):
            kind = FIFO if SHARDING_MARK in message.properties else usual
            self._queues[queue].size(kind).add(size)
            if message.topic.startswith(DLQ_PREFIX):
                group = message.topic.removeprefix(DLQ_PREFIX)
                origin = find_property(message.properties, RETRY_TOPIC.encode()) or b""
                self._count_dead(group, origin.decode(errors="replace")[:NAME_CHARS_MAX])

    def _count_halves(self, placed: Placed) -> None:
        if len(placed.sizes) <= FEW:
            for queue, size in zip(placed.queues, placed.sizes, strict=True):
                self._queues[queue].size(TRANSACTION).add(size)
            return
        queues, sizes = np.asarray(placed.queues), np.asarray(placed.sizes)
        for queue in np.unique(queues).tolist():
            self._queues[queue].size(TRANSACTION).add_all(sizes[queues == queue])

    def _count_dead(self, group: str, origin: str) -> None:
        key = (group, origin)
        if key not in self.dead and len(self.dead) >= OUT_MAX:
            key = (OTHERS, OTHERS)
        self.dead[key] += 1

    # Decisions.

    def _decided(self, record: Decided, _: Decision, command: Command) -> None:
        if record.state == _COMMITTED:
            self.decisions[source_of(command), COMMITTED] += 1
            self._count_commit(record, record.head)
            return
        self.decisions[source_of(command), ROLLED_BACK] += 1
        for first, count in record.ranges:
            for queue in self._store.table.queues(first, count):
                self._queues[queue].rolled_back += 1

    def _batch(self, record: BatchDecided, *_: object) -> None:
        self.decisions["batch", COMMITTED] += len(record.heads)
        self._count_commit(record, record.heads[0] if record.heads else -1)

    def _parked(self, *_: object) -> None:
        self.parked += 1

    def _resumed(self, *_: object) -> None:
        self.resumed += 1

    def _count_commit(self, record: Decided | BatchDecided, head: int) -> None:
        table = self._store.table
        chunk, at = table.place(head)
        if chunk is not None:
            stored_at_ms = chunk.stored_at_ms[at]
        else:
            half = table.get(head)
            stored_at_ms = self._store.last_at_ms if half is None else half.stored_at_ms
        # Whole seconds, as RocketMQ's.
        age_s = max(self._store.last_at_ms - stored_at_ms, 0) // 1_000
        for span in record.given:
            self._queues[span.queue].commit(age_s, span.count)
        for row, _ in record.waiting:
            (queue,) = table.queues(row, 1)
            self._queues[queue].commit(age_s, 1)

    def _many(self, record: DecidedMany, *_: object) -> None:
        table = self._store.table
        committed = np.frombuffer(record.committed, dtype="<i8")
        rolled_back = np.frombuffer(record.rolled_back, dtype="<i8")
        self.decisions["settle", COMMITTED] += len(committed)
        self.decisions["settle", ROLLED_BACK] += len(rolled_back)
        rows = table.columns(committed)
        ages_s = np.maximum(self._store.last_at_ms - rows.stored_at_ms, 0) // 1_000
        for queue, age_s, count in _counted(rows.queue[rows.is_here], ages_s[rows.is_here]):
            self._queues[queue].commit(age_s, count)
        rows = table.columns(rolled_back)
        for queue, _age_s, count in _counted(rows.queue[rows.is_here], 0):
            self._queues[queue].rolled_back += count


def source_of(command: Command) -> str:
    """Which of the sources such a command is of."""
    if type(command) is End:
        if command.from_check:
            return "check"
        return "hand" if BY_HAND in command.by else "producer"
    if isinstance(command, Verdict | Verdicts):
        return "settle"
    assert isinstance(command, DecideBatch)
    return "batch"


def _counted(queues: Numbers, ages_s: Numbers | int) -> Iterator[tuple[int, int, int]]:
    """Each queue and age that is there, and how often."""
    pairs, counts = np.unique(
        queues.astype(np.int64) << 32 | np.minimum(ages_s, 2**32 - 1), return_counts=True
    )
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        yield pair >> 32, pair & 0xFFFF_FFFF, count
