"""Counters since the broker started: updated where events happen, and read by a scrape.

The path of a message or a request only adds to existing numbers. The writer counts durable batches
from their records, so a counter never includes anything that may still be lost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np

from escrowmq.broker.state.messages import SHARDING_MARK
from escrowmq.broker.state.transaction_lookup import BY_HAND
from escrowmq.model.event_log import event_log
from escrowmq.model.resolution import Resolution
from escrowmq.model.topic_names import DLQ_PREFIX
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.message.limits import NAME_CHARS_MAX
from escrowmq.protocol.message.properties import RETRY_TOPIC, find_property
from escrowmq.transaction import records as kinds
from escrowmq.transaction.commands import Command, DecideBatch, Decision, End, Verdict, Verdicts
from escrowmq.transaction.records import Placed, Record, readers_by_type
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from escrowmq.broker.write.inbox import QueuedCommand
    from escrowmq.model.message import SentMessage
    from escrowmq.model.message_columns import Numbers
    from escrowmq.store.store import Store

log = event_log(__name__)

#: RocketMQ's bounds: message sizes in bytes, ages at commit in seconds, answer times in ms.
SIZE_BOUNDS = (1_024, 4_096, 524_288, 1_048_576, 2_097_152, 4_194_304)
FINISH_BOUNDS = (5, 60, 600, 3_600, 43_200, 86_400)
RPC_BOUNDS = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)
FLUSH_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

#: Above this many half messages in one request, counting uses NumPy columns.
FEW = 16
#: Pairs of topic and group with their own count; further pairs share one count.
OUT_MAX = 10_000
OTHERS = "(others)"
#: Sources of decisions.
SOURCES = ("producer", "check", "settle", "batch", "hand")
#: RocketMQ's names of message types.
NORMAL, FIFO, DELAY, TRANSACTION = "normal", "fifo", "delay", "transaction"
COMMITTED, ROLLED_BACK = State.COMMITTED.label, State.ROLLED_BACK.label
# Plain numbers and strings, because comparing and hashing an enum costs a call.
_COMMITTED = int(State.COMMITTED)


class Histogram:
    """Histogram of values with fixed upper bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        #: Values above the previous bound, up to and including this one; the last are above all.
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
    """Messages of one topic that were delivered to one group."""

    __slots__ = ("bytes", "messages", "pulled")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        #: The next offset to deliver, by queue.
        self.pulled: dict[int, int] = {}

    def add(self, queue_id: int, messages: Sequence[bytes], next_offset: int) -> None:
        """Count a delivery."""
        self.messages += len(messages)
        self.bytes += sum(map(len, messages))
        self.pulled[queue_id] = next_offset


@dataclass(slots=True, eq=False)
class OfTopic:
    """Messages that came in for one topic, and the outcomes of its half messages."""

    #: Sizes of stored messages, by message type.
    sizes: dict[str, Histogram] = field(default_factory=dict)
    committed: int = 0
    rolled_back: int = 0
    #: Ages of half messages at their commit, in seconds.
    finished: Histogram | None = None

    def size(self, kind: str) -> Histogram:
        """Return the size histogram of a message type."""
        found = self.sizes.get(kind)
        if found is None:
            found = self.sizes[kind] = Histogram(SIZE_BOUNDS)
        return found

    def commit(self, age_s: int, count: int) -> None:
        """Count half messages that were committed at this age."""
        self.committed += count
        finished = self.finished
        if finished is None:
            finished = self.finished = Histogram(FINISH_BOUNDS)
        finished.counts[bisect_left(FINISH_BOUNDS, age_s)] += count
        finished.total += age_s * count


class _ByQueue(dict[int, OfTopic]):
    """Counts by queue number; all queues of a topic share one ``OfTopic``."""

    def __init__(self, store: Store, topics: dict[str, OfTopic]) -> None:
        super().__init__()
        self._store = store
        self._topics = topics

    def __missing__(self, queue: int) -> OfTopic:
        topic = self._store.core.names.named(queue).topic
        found = self[queue] = self._topics.setdefault(topic, OfTopic())
        return found


class Rpcs:
    """Answer times of requests, by request code and response code."""

    def __init__(self) -> None:
        #: Request codes with their own count; all others share one count.
        self.codes: Container[int] = ()
        #: Names of the request codes, if this protocol numbers them itself.
        self.names: Mapping[int, str] = {}
        #: By request code, response code and flags, packed into one number.
        self.latencies: dict[int, Histogram] = {}
        #: Refused requests by error code.
        self.refused: Counter[str] = Counter()

    def note(self, code: int, response: int, began: float, flags: int) -> None:
        """Count an answered request; ``began`` is the ``perf_counter`` value at its arrival."""
        key = (code << 24) | (response << 2) | flags
        known = self.latencies.get(key)
        if known is None:
            if code not in self.codes:
                key = (NO_CODE << 24) | (response << 2) | flags
            known = self.latencies.setdefault(key, Histogram(RPC_BOUNDS))
        # Inlined, because a call to ``add`` would take as long as the rest of this method.
        took_ms = (perf_counter() - began) * 1_000
        known.counts[bisect_left(RPC_BOUNDS, took_ms)] += 1
        known.total += took_ms


#: Stands for all request codes without a handler.
NO_CODE = 0
#: Flags of a request: it is one-way; its answer had to wait.
ONE_WAY = 1
LONG_POLL = 2


def parts_of(key: int) -> tuple[int, int, int]:
    """Return the request code, response code and flags of a key."""
    return key >> 24, (key >> 2) & 0x3FFFFF, key & 3


class BrokerCounts:
    """All counters of a broker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Answer times of remoting, by request code, and of gRPC, by the number of the method.
        self.rpcs = Rpcs()
        self.grpc_rpcs = Rpcs()
        self.topics: dict[str, OfTopic] = {}
        self._queues = _ByQueue(store, self.topics)
        #: Delivered messages, by group and topic.
        self.out: dict[tuple[str, str], Out] = {}
        #: Dead letters, by group and original topic.
        self.dead: Counter[tuple[str, str]] = Counter()
        #: Transactions by source and decision, answers to back-checks, and outcomes of verdicts.
        #: All keys exist from the start, so that the first event shows as a change.
        self.decisions = Counter(
            {(source, end): 0 for source in SOURCES for end in (COMMITTED, ROLLED_BACK)}
        )
        self.answers = Counter({resolution.value: 0 for resolution in Resolution})
        self.verdicts = Counter({outcome.value: 0 for outcome in VerdictOutcome})
        self.parked = 0
        self.resumed = 0
        self._has_failed = False
        self._counters = readers_by_type(self._counter)

    def given(self, group: str, topic: str) -> Out:
        """Return the counter of messages of a topic that are delivered to a group."""
        key = (group, topic)
        out = self.out.get(key)
        if out is None:
            if len(self.out) >= OUT_MAX:
                key = (OTHERS, OTHERS)
            out = self.out.setdefault(key, Out())
        return out

    def forget(self, topic: str, queues: Iterable[int]) -> None:
        """Forget a removed topic's counts, except of dead letters."""
        self.topics.pop(topic, None)
        for queue in queues:
            self._queues.pop(queue, None)
        for key in [key for key in self.out if key[1] == topic]:
            del self.out[key]

    def forget_group(self, group: str) -> None:
        """Forget a removed consumer group's counts, which makes room for other groups."""
        counted: tuple[dict[tuple[str, str], Any], ...] = (self.out, self.dead)
        for counts in counted:
            for key in [key for key in counts if key[0] == group]:
                del counts[key]

    def durable(self, batch: Sequence[QueuedCommand], decisions: Sequence[Decision]) -> None:
        """Count a durable batch."""
        try:
            for waiting, decision in zip(batch, decisions, strict=True):
                command = waiting.command
                if type(command) is End and command.from_check:
                    self.answers[command.resolution.value] += 1
                for record in decision.records:
                    self._counters[type(record)](record, decision, command)
        except Exception:
            # A wrong count is no reason to stop the writer.
            if not self._has_failed:
                log.exception("counting_failed", extra={"decisions": len(decisions)})
            self._has_failed = True

    def _counter(self, record: Record) -> Callable[[Any, Decision, Command], None]:  # noqa: PLR0911 - one case per record
        match record:
            case kinds.Prepared():
                return self._prepared
            case kinds.Stored():
                return self._stored
            case kinds.Scheduled():
                return self._scheduled
            case kinds.Decided():
                return self._decided
            case kinds.DecidedMany():
                return self._many
            case kinds.BatchDecided():
                return self._batch
            case kinds.Parked():
                return self._parked
            case kinds.Resumed():
                return self._resumed
            case _ if isinstance(record, kinds.Carried | kinds.Released | kinds.QuietRecord):
                return lambda *_: None
            case _:
                assert_never(record)

    def _prepared(self, record: kinds.Prepared, *_: object) -> None:
        placed = record.placed
        sizes = placed.sizes
        if len(sizes) == 1:
            # Nearly all records hold one message.
            self._queues[placed.queues[0]].size(TRANSACTION).add(sizes[0])
        else:
            self._count_halves(placed)

    def _stored(self, record: kinds.Stored, decision: Decision, _: object) -> None:
        self._count_plain(record.placed, decision.messages, NORMAL)

    def _scheduled(self, record: kinds.Scheduled, decision: Decision, _: object) -> None:
        self._count_plain(record.placed, decision.messages, DELAY)

    def _count_plain(self, placed: Placed, messages: Sequence[SentMessage], usual: str) -> None:
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

    def _decided(self, record: kinds.Decided, _: Decision, command: Command) -> None:
        if record.state == _COMMITTED:
            self.decisions[source_of(command), COMMITTED] += 1
            self._count_commit(record, record.head)
            return
        self.decisions[source_of(command), ROLLED_BACK] += 1
        for first, count in record.ranges:
            for queue in self._store.table.queues(first, count):
                self._queues[queue].rolled_back += 1

    def _batch(self, record: kinds.BatchDecided, *_: object) -> None:
        self.decisions["batch", COMMITTED] += len(record.heads)
        self._count_commit(record, record.heads[0] if record.heads else -1)

    def _parked(self, *_: object) -> None:
        self.parked += 1

    def _resumed(self, *_: object) -> None:
        self.resumed += 1

    def _count_commit(self, record: kinds.Decided | kinds.BatchDecided, head: int) -> None:
        table = self._store.table
        chunk, at = table.place(head)
        if chunk is not None:
            stored_at_ms = chunk.stored_at_ms[at]
        else:
            half = table.get(head)
            stored_at_ms = self._store.last_at_ms if half is None else half.stored_at_ms
        # In full seconds, as in RocketMQ.
        age_s = max(self._store.last_at_ms - stored_at_ms, 0) // 1_000
        for span in record.given:
            self._queues[span.queue].commit(age_s, span.count)
        for row, _ in record.waiting:
            (queue,) = table.queues(row, 1)
            self._queues[queue].commit(age_s, 1)

    def _many(self, record: kinds.DecidedMany, *_: object) -> None:
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
    """Return the source of a command that decides."""
    if type(command) is End:
        if command.from_check:
            return "check"
        return "hand" if BY_HAND in command.by else "producer"
    if isinstance(command, Verdict | Verdicts):
        return "settle"
    assert isinstance(command, DecideBatch)
    return "batch"


def _counted(queues: Numbers, ages_s: Numbers | int) -> Iterator[tuple[int, int, int]]:
    """Yield each combination of queue and age, and its count."""
    pairs, counts = np.unique(
        queues.astype(np.int64) << 32 | np.minimum(ages_s, 2**32 - 1), return_counts=True
    )
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        yield pair >> 32, pair & 0xFFFF_FFFF, count
