"""A store with all kinds of content, and the truth about it, for tests that damage it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import msgspec

from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.disk import Disk
from escrowmq.store.log.commit_log import read_frames
from escrowmq.store.log.frames import HEAD_BYTES
from escrowmq.store.log.frames import Frame as LogFrame
from escrowmq.store.reading.reader import StoreReader
from escrowmq.store.recovery.recovery import RecoveryResult, open_store
from escrowmq.store.retention.retention import retain
from escrowmq.store.store import Store
from escrowmq.testing.disk_image import DiskImage
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import everything_survives
from escrowmq.transaction.commands import (
    Append,
    CheckSent,
    End,
    Ended,
    HoldReply,
    Obeyed,
    Park,
    Prepare,
    Release,
    Resume,
    Verdicts,
)
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import (
    Asked,
    BatchDecided,
    Carried,
    Decided,
    DecidedMany,
    Parked,
    Prepared,
    Record,
    Released,
    Resumed,
    Scheduled,
    Stored,
)
from escrowmq.transaction.states import State

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
CONFIG = StoreConfig(
    segment_bytes_max=8_192, chunk_rows=16, id_window_ms=0, copy_after_ms=2_000, retention_ms=4_000
)
START_MS = 1_700_000_000_000


def opened(disk: Disk) -> tuple[Store, RecoveryResult]:
    return open_store(disk, CONFIG, CheckPolicy(), HOST)


@dataclass
class Shop:
    """Sends orders to a store; the seed determines every choice."""

    seed: int = 0
    disk: FaultyDisk = field(default_factory=FaultyDisk)
    now_ms: int = START_MS

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.store, _ = opened(self.disk)
        self.number = 0
        self.open: list[int] = []

    def message(self, *, delay_ms: int = 0, at_ms: int = 0) -> SentMessage:
        self.number += 1
        key = f"key-{self.number}"
        return SentMessage(
            topic=self.rng.choice(("orders", "invoices")),
            queue_id=self.rng.randrange(2),
            body=b"body %d " % self.number * self.rng.randint(1, 8),
            properties=f"KEYS\x01{key}\x02PGROUP\x01shop-{self.number % 3}\x02".encode(),
            keys=(key,),
            unique_key=f"unique-{self.number}",
            deliver_after_ms=delay_ms,
            deliver_at_ms=at_ms,
        )

    def prepare(self, count: int = 1, *, delay_ms: int = 0, requests: int = 1) -> int:
        """Hold a transaction; return its head."""
        transaction_id = f"t-{self.number}"
        head = -1
        for number in range(requests):
            command = Prepare(
                group=f"shop-{self.rng.randrange(3)}" if head < 0 and requests == 1 else "shop",
                transaction_id=transaction_id,
                messages=tuple(self.message(delay_ms=delay_ms) for _ in range(count)),
                number=number if requests > 1 else None,
            )
            reply = self.store.execute(command, self.now_ms).reply
            assert isinstance(reply, HoldReply)
            head = head if head >= 0 else reply.half_offset
        self.open.append(head)
        return head

    def prepare_with(self, properties: bytes, group: str) -> None:
        """Hold one message with exactly these properties."""
        message = msgspec.structs.replace(self.message(), properties=properties)
        command = Prepare(group=group, transaction_id=f"{self.number}", messages=(message,))
        assert self.store.execute(command, self.now_ms).refused is None

    def end(self, head: int, resolution: Resolution) -> None:
        decision = self.store.execute(
            End(half_offset=head, resolution=resolution, by="shop"), self.now_ms
        )
        assert decision.refused is None, decision.refused
        if head in self.open:
            self.open.remove(head)

    def obey(self, heads: list[int]) -> None:
        """Obey verdicts on these transactions; those that are not simple stay as they are."""
        halves = [self.store.core.row(head) for head in heads]
        command = Verdicts(
            half_offsets=heads,
            commits=[self.rng.random() < 0.7 for _ in heads],
            states=[half.state for half in halves],
            checks_sent=[half.checks_sent for half in halves],
        )
        reply = self.store.execute(command, self.now_ms).reply
        assert isinstance(reply, Obeyed)
        for head, end in zip(heads, reply.ends, strict=True):
            if end in (Ended.COMMITTED, Ended.ROLLED_BACK):
                self.open.remove(head)

    def park(self, head: int, reason: str = "test") -> None:
        self.store.execute(Park(half_offset=head, reason=reason), self.now_ms)

    def resume(self, head: int) -> None:
        self.store.execute(Resume(half_offset=head, by="admin"), self.now_ms)

    def append(self, count: int = 1, *, at_ms: int = 0) -> None:
        """Store ordinary messages and flush them."""
        messages = tuple(self.message(at_ms=at_ms) for _ in range(count))
        assert self.store.execute(Append(messages=messages), self.now_ms).refused is None
        self.store.sync()

    def confirm(self) -> None:
        """Append frames that confirm that all earlier ones are flushed, and each queue's end."""
        self.store.sync()
        ends = [queue.end for queue in self.store.queues.values()]
        self.append()
        self.append()
        while not all(
            queue.end > end for queue, end in zip(self.store.queues.values(), ends, strict=False)
        ):
            self.append()

    @property
    def checkpointed(self) -> int:
        """Where the newest checkpoint ends."""
        return self.store.checkpointed

    def places(self, row: int) -> set[tuple[str, int, int]]:
        """Queue places at which the message of a half offset is visible."""
        half = self.store.core.row(row)
        queue = self.store.queues[half.queue]
        return {
            (queue.topic, queue.queue_id, offset)
            for offset, entry in enumerate(queue.entries(queue.start, queue.end), queue.start)
            if entry.log_offset == half.location
        }

    def last_frame(self) -> LogFrame:
        return list(_all_frames(self.store))[-1]

    def last_messages(self) -> bytes:
        frame = self.last_frame()
        return self.store.log.read(frame.messages, frame.records_at - HEAD_BYTES)

    def step(self) -> None:
        """Run one random step of a broker's life."""
        rng = self.rng
        self.now_ms += rng.randrange(1, 40)
        head = rng.choice(self.open) if self.open else -1
        match rng.randrange(13):
            case 0 | 1:
                self.prepare(rng.choice((1, 1, 2, 3)))
            case 2:
                self.prepare(2, requests=rng.choice((2, 3)))
            case 3:
                self.prepare(rng.choice((1, 2)), delay_ms=rng.choice((0, 100)))
            case 4 | 5 | 6 if head >= 0:
                self.end(head, rng.choice((Resolution.COMMIT,) * 3 + (Resolution.ROLLBACK,)))
            case 7 if head >= 0:
                self.store.execute(CheckSent(half_offset=head, client="c"), self.now_ms)
                unknown = End(
                    half_offset=head,
                    resolution=Resolution.UNKNOWN,
                    by="c",
                    from_check=True,
                    remark="no table",
                )
                self.store.execute(unknown, self.now_ms)
            case 8 if head >= 0:
                is_parked = self.store.core.row(head).state is State.PARKED
                (self.resume if is_parked else self.park)(head)
            case 9 if len(self.open) > 1:
                self.obey(rng.sample(self.open, rng.randint(1, min(len(self.open), 5))))
            case 10:
                self.append(at_ms=self.now_ms + 50)
            case _:
                self.append(rng.choice((1, 2)))
        if rng.random() < 0.5:
            self.store.sync()
            self.release()

    def release(self) -> None:
        due = [
            row
            for row in self.store.table.due(self.now_ms, 100)
            if self.store.core.row(row).state is State.COMMITTED
        ]
        if due:
            self.store.execute(Release(half_offsets=tuple(due)), self.now_ms)
            self.store.sync()

    def run(self, steps: int, *, checkpoints: float = 0.01, retention: float = 0.0) -> Shop:
        for _ in range(steps):
            self.step()
            chance = self.rng.random()
            if chance < checkpoints:
                self.store.sync()
                self.store.checkpoint()
            elif chance < checkpoints + retention:
                self.store.sync()
                retain(self.store, self.now_ms)
        self.store.sync()
        return self

    def image(self) -> DiskImage:
        """The disk as a kill would leave it now."""
        return self.disk.crash_image(everything_survives)


def fresh(image: DiskImage) -> FaultyDisk:
    return FaultyDisk(image)


@dataclass
class Truth:
    """Everything that a store shows."""

    states: dict[int, State] = field(default_factory=dict)
    #: By topic, queue id and queue offset.
    visible: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)


def truth_of(store: Store) -> Truth:
    truth = Truth()
    for row in range(store.table.end):
        half = store.table.get(row)
        if half is not None:
            truth.states[row] = half.state
    reader = StoreReader(store)
    for queue in store.queues.values():
        name = (queue.topic, queue.queue_id)
        truth.starts[name], truth.ends[name] = queue.start, queue.end
        for offset in range(queue.start, queue.end):
            pulled = reader.pull(*name, offset, count_max=1, bytes_max=1)
            assert pulled.next_offset == offset + 1
            if pulled.messages:
                truth.visible[*name, offset] = pulled.messages[0]
    return truth


@dataclass
class Frame:
    """Contents of a frame."""

    start: int
    end: int
    #: Half offsets that it holds, decides, carries forward or releases.
    rows: set[int]
    #: Queue places (topic, queue id, queue offset) that it gives.
    places: set[tuple[str, int, int]]


def _all_frames(store: Store) -> Iterator[LogFrame]:
    for segment in store.log.segments:
        yield from read_frames(segment, store.seed, from_offset=segment.start, end=segment.end)


def frames_of(store: Store) -> list[Frame]:
    found = []
    for frame in _all_frames(store):
        one = Frame(frame.log_offset, frame.end, set(), set())
        for record in frame.records:
            one.rows |= _rows(record)
            for queue, offset in _places(record):
                named = store.core.names.queues[queue]
                one.places.add((named.topic, named.queue_id, offset))
        found.append(one)
    return found


def _rows(record: Record) -> set[int]:
    match record:
        case Prepared() | Scheduled():
            head = record.head if isinstance(record, Prepared) else record.first
            return {head, *range(record.first, record.first + len(record.placed.sizes))}
        case Parked() | Resumed() | Asked():
            return {record.head}
        case Decided() | BatchDecided() | DecidedMany():
            return {row for first, count in record.ranges for row in range(first, first + count)}
        case Released():
            return set(record.rows)
        case Carried():
            return {row.half_offset for row in record.rows}
    return set()


def _places(record: Record) -> list[tuple[int, int]]:
    match record:
        case Stored():
            return list(zip(record.placed.queues, record.queue_offsets, strict=True))
        case Decided() | BatchDecided() | DecidedMany():
            return [
                (span.queue, offset)
                for span in record.given
                for offset in range(span.first, span.first + span.count)
            ]
        case Released():
            return list(zip(record.queues, record.queue_offsets, strict=True))
    return []
