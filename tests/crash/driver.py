"""Drives a store on a disk, keeps the history, and marks on the disk what clients were told.

The marks set the bounds for a crash: ``Acked`` says that clients have the answers to that many
commands, ``Tried`` that this many may have reached the disk.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.store.config import StoreConfig
from escrowmq.store.recovery import format as formats
from escrowmq.store.recovery.recovery import RecoveryResult, open_store
from escrowmq.store.retention.retention import do_step, next_step, retirements
from escrowmq.store.retention.retirement import Checkpointing, Removed
from escrowmq.store.store import Store
from escrowmq.testing.clock import ManualClock
from escrowmq.testing.disk_image import DiskImage
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.transaction import commands as c
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.recall_commands import Recall
from escrowmq.transaction.states import State
from tests.crash.expectations import follow
from tests.crash.judge import Starts, judge, starts_of
from tests.crash.model import HOST, History, Queue, Step, Transaction, World, Wrong
from tests.crash.state_stores import let_go

#: As small as possible, so that a short run has dozens of segments, chunks and checkpoints.
CONFIG = StoreConfig(
    segment_bytes_max=4_096,
    checkpoint_bytes=4_096,
    chunk_rows=8,
    retention_ms=60_000,
    copy_after_ms=10_000,
    id_window_ms=1_000,
)
POLICY = CheckPolicy(
    check_after_ms=6_000,
    check_interval_ms=5_000,
    check_backoff=2.0,
    check_interval_max_ms=60_000,
    checks_max=3,
)
#: A new store with a fixed seed, so that runs repeat; the seed is no secret here.
BORN = DiskImage.of({formats.PATH: msgspec.json.encode(formats.chosen(3_405_691_582, 8))})
#: The start of a frame, put into message bodies so that a scan may mistake them for frames.
DECOY = b"EMQF\x01\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class Tried:
    """This many commands are being written."""

    count: int


@dataclass(frozen=True, slots=True)
class Acked:
    """This many commands were answered."""

    count: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """This many commands are durable, even where answers do not wait for the flush."""

    count: int


@dataclass(frozen=True, slots=True)
class Retaining:
    """Retention number `number` began."""

    number: int


@dataclass(frozen=True, slots=True)
class Retained:
    """Retention number `number` ended."""

    number: int


class Driver:
    """One store, its clients and what they remember."""

    def __init__(
        self,
        disk: FaultyDisk,
        config: StoreConfig = CONFIG,
        policy: CheckPolicy = POLICY,
        history: History | None = None,
    ) -> None:
        self.disk = disk
        self.config = config
        self.policy = policy
        self.clock = ManualClock()
        self.history = history or History(policy)
        self.starts: list[Starts] = [{}]
        self.acked = 0
        #: Commands that are known to be durable, because something was written after their flush.
        self.confirmed = 0
        self._messages = 0
        self.store, self.found = self._open()

    def _open(self) -> tuple[Store, RecoveryResult]:
        return open_store(self.disk, self.config, self.policy, HOST)

    @property
    def world(self) -> World:
        """The expected state if everything executed so far reaches the disk."""
        return self.history.world

    # Commands.

    def do(self, command: c.Command) -> c.Decision:
        """Execute a command; its answer may not leave before ``sync``."""
        now_ms = self.clock.now_ms()
        decision = self.store.execute(command, now_ms)
        self.history.add(Step(command, now_ms, decision, self.store.log.end), follow)
        return decision

    def sync(self) -> None:
        """Flush and answer everything executed so far."""
        self.disk.mark(Tried(len(self.history)))
        if self.config.durability == "fsync" and self.store.log.end > self.store.log.written:
            self.confirmed = self.acked
        self.store.sync()
        self.acked = len(self.history)
        self.disk.mark(Acked(self.acked))
        if self.store.checkpoint_due and self.store.space.look_for_files():
            self.checkpoint()

    def checkpoint(self) -> None:
        """Take a checkpoint; nothing may be waiting for ``sync``."""
        self.store.checkpoint()
        self.confirmed = len(self.history)
        self.disk.mark(Flushed(len(self.history)))

    def retain(self) -> None:
        """Delete what is old; nothing may be waiting for ``sync``."""
        now_ms = self.clock.now_ms()
        # A carried half message is a record, so store time does not go back behind it.
        until_ms = now_ms - self.config.retention_ms
        self.world.deleted_until_ms = max(self.world.deleted_until_ms, until_ms)
        removed = self._retire(now_ms)
        if removed.carried:
            self.world.at_ms = max(self.world.at_ms, now_ms)
        # The clock may have gone back since an earlier retention used its limit.
        self._refuse_greed(self.world.deleted_until_ms + self.config.copy_after_ms)

    def _retire(self, now_ms: int) -> Removed:
        """Do what ``retain`` does, and mark from when on which queue starts are valid."""
        removed = Removed(log_start=self.store.log.start)
        steps = retirements(self.store, now_ms, removed)
        decisions: list[c.Decision] | None = None
        is_recording = False
        while (step := next_step(steps, decisions)) is not None:
            was_recording, is_recording = is_recording, isinstance(step, Checkpointing)
            if is_recording and not was_recording:
                self.disk.mark(Retaining(len(self.starts)))
                self.starts.append(starts_of(self.store))
            if was_recording and not is_recording:
                self.disk.mark(Retained(len(self.starts) - 1))
                self.disk.mark(Flushed(len(self.history)))
            decisions = do_step(self.store, step, now_ms)
        return removed

    def _refuse_greed(self, until_ms: int) -> None:
        """Raise if retention deleted anything that became visible after this time."""
        for queue, start in starts_of(self.store).items():
            gone = self.world.queues[queue][:start]
            if gone and gone[-1].stored_at_ms > until_ms:
                raise Wrong(f"retention took {gone[-1]}, visible after {until_ms}")

    def kill(self) -> None:
        """Kill the process without a power cut, and open the store again."""
        let_go(self.store)
        self.store, self.found = self._open()
        count = self.history.count_in(self.store.recovered_at)
        if not self.acked <= count <= len(self.history):
            raise Wrong(f"{count} commands are left, {self.acked} were answered")
        self.history = self.history.until(count)
        self.acked = self.confirmed = count
        self.catch_up()

    def catch_up(self) -> None:
        """Take over the store's time: half messages carried forward may be newer than the last
        command.
        """
        self.world.at_ms = max(self.world.at_ms, self.store.last_at_ms)

    def close(self) -> None:
        """Stop in good order, and start again."""
        self.store.close()
        self.acked = self.confirmed = len(self.history)
        self.store, self.found = self._open()

    def judge(self) -> None:
        """Compare the store with the model; nothing may be waiting for ``sync``."""
        judge(self.store, self.world, self.starts[-1:])

    # Shorthands.

    def message(
        self,
        queue: Queue = ("orders", 0),
        *,
        size: int = 60,
        after_ms: int = 0,
        in_ms: int = 0,
    ) -> SentMessage:
        """Make a unique message."""
        self._messages += 1
        number = len(self.history) * 1_000 + self._messages
        key = f"K{number}"
        body = b"%d:" % number + (DECOY + bytes(range(256)) * 20)[:size]
        is_ipv6 = number % 5 == 0
        return SentMessage(
            topic=queue[0],
            queue_id=queue[1],
            body=body,
            properties=f"UNIQ_KEY\x01{key}\x02TAGS\x01t{number % 3}\x02".encode(),
            tags=f"t{number % 3}",
            unique_key=key,
            flag=number,
            born_at_ms=number,
            born_host=bytes(range(20)) if is_ipv6 else b"\x7f\x00\x00\x01\x00\x00\x00\x07",
            deliver_after_ms=after_ms,
            deliver_at_ms=self.clock.now_ms() + in_ms if in_ms else 0,
        )

    def prepare(
        self,
        *messages: SentMessage,
        transaction_id: str = "",
        number: int | None = None,
        group: str = "shop",
        bulk: bool = False,
    ) -> int:
        """Hold half messages; return the first one's row."""
        decision = self.do(
            c.Prepare(
                group=group,
                transaction_id=transaction_id or messages[0].unique_key,
                messages=messages,
                number=number,
                bulk=bulk,
            )
        )
        assert isinstance(decision.reply, c.HoldReply), decision
        return decision.reply.half_offset

    def append(self, *messages: SentMessage) -> None:
        """Store ordinary messages."""
        self.do(c.Append(messages=messages))

    def commit(self, row: int, by: str = "producer") -> None:
        """Commit the transaction of a row."""
        self.do(c.End(half_offset=row, resolution=Resolution.COMMIT, by=by))

    def roll_back(self, row: int, by: str = "producer") -> None:
        """Roll back the transaction of a row."""
        self.do(c.End(half_offset=row, resolution=Resolution.ROLLBACK, by=by))

    def check(self, row: int) -> None:
        """Ask the producer, which answers that it does not know."""
        self.do(c.CheckSent(half_offset=row, client="client-1"))
        self.do(
            c.End(half_offset=row, resolution=Resolution.UNKNOWN, by="client-1", from_check=True)
        )

    def obey(self, *said: tuple[int, bool], is_outdated: bool = False) -> None:
        """Send verdicts on these rows (True commits), based on the state that the pipeline saw."""
        known = [self.world.transaction_of(row) for row, _ in said]
        self.do(
            c.Verdicts(
                half_offsets=[row for row, _ in said],
                commits=[is_commit for _, is_commit in said],
                states=[0 if one is None else one.state for one in known],
                checks_sent=[
                    is_outdated if one is None else one.checks_sent + is_outdated for one in known
                ],
                by=f"round {len(self.history)}",
            )
        )

    def release(self) -> None:
        """Release the messages that are due."""
        now_ms = self.clock.now_ms()
        rows = [row for row in self.store.table.due(now_ms, 100) if self.world.rows[row].is_waiting]
        self.do(c.Release(half_offsets=tuple(rows)))

    def recall(self, row: int, *, by: str = "sender") -> c.Decision:
        """Recall the delayed message of a row."""
        known = self.world.rows.get(row)
        log_offset = 0 if known is None else known.log_offset
        return self.do(Recall(half_offset=row, log_offset=log_offset, epoch="", by=by))

    def decide_batch(
        self, *transaction_ids: str, batch_id: int | str, query_id: str = "query"
    ) -> c.Decision:
        """Commit Spark attempts with the claims that their driver would make."""
        claims = []
        for transaction_id in transaction_ids:
            known = self.world.newest(transaction_id)
            claims.append(
                c.AttemptClaim(
                    transaction_id=transaction_id,
                    last_number=len(known.requests) - 1 if known else 0,
                    rows=len(known.rows) if known else 0,
                )
            )
        return self.do(
            c.DecideBatch(
                app_id="app",
                query_id=query_id,
                batch_id=batch_id,
                attempts=tuple(claims),
                by="driver",
            )
        )

    def open_transactions(self, *states: State) -> list[Transaction]:
        """Transactions in one of these states; by default all undecided ones."""
        wanted = states or (State.PREPARED, State.PARKED)
        return [one for one in self.world.transactions.values() if one.state in wanted]
