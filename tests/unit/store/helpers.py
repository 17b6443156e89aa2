"""Driver for a small store: a manual clock, short methods for commands, and views of the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.ids import pack_host
from escrowmq.protocol.message.properties import format_properties
from escrowmq.protocol.message.stored_message import StoredMessage, decode
from escrowmq.store.checkpoint import checkpoint as checkpoints
from escrowmq.store.config import StoreConfig
from escrowmq.store.reading.reader import ReadStatus, StoreReader
from escrowmq.store.recovery.recovery import open_store
from escrowmq.store.retention.retention import retain
from escrowmq.store.table.state_table import StateTable
from escrowmq.testing.clock import ManualClock
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import Survivors, nothing_survives
from escrowmq.transaction.commands import (
    Append,
    Appended,
    AttemptClaim,
    BatchReply,
    Command,
    DecideBatch,
    Decision,
    End,
    Ended,
    EndReply,
    HoldReply,
    Obeyed,
    Prepare,
    Release,
    Verdicts,
)
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.model.errors import RequestRefused
    from escrowmq.store.disk.disk import Disk
    from escrowmq.store.retention.retirement import Removed
    from escrowmq.transaction.table import Half

T0 = 1_700_000_000_000
SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
HOST = pack_host("10.0.0.1", 10_911)
DECIDED = (State.COMMITTED, State.ROLLED_BACK)


def small_config(**changes: int | str) -> StoreConfig:
    """Small sizes, so that a few messages fill a segment and a chunk."""
    values: dict[str, Any] = {
        "segment_bytes_max": 4096,
        "retention_ms": 24 * HOUR,
        "copy_after_ms": HOUR,
        "chunk_rows": 8,
        "id_window_ms": MINUTE,
        **changes,
    }
    return StoreConfig(**values)


def message(
    body: bytes | str = b"hello",
    *,
    topic: str = "orders",
    queue_id: int = 0,
    keys: str = "",
    unique_key: str = "",
    tags: str = "",
    **fields: int | bytes,
) -> SentMessage:
    """Make a message as the broker does from a request, with the fields read from its
    properties.
    """
    named = {"KEYS": keys, "UNIQ_KEY": unique_key, "TAGS": tags}
    made = SentMessage(
        topic=topic,
        queue_id=queue_id,
        body=body.encode() if isinstance(body, str) else body,
        properties=format_properties({name: value for name, value in named.items() if value}),
        keys=tuple(keys.split()),
        unique_key=unique_key,
        tags=tags,
    )
    return msgspec.structs.replace(made, **fields)


class Driver:
    """An open store with its disk and clock."""

    def __init__(
        self,
        disk: Disk | None = None,
        *,
        clock: ManualClock | None = None,
        policy: CheckPolicy | None = None,
        **config: int | str,
    ) -> None:
        self.disk = disk or FaultyDisk()
        self.clock = clock or ManualClock(T0)
        self.policy = policy or CheckPolicy()
        self.changes = config
        self.store, self.found = open_store(self.disk, small_config(**config), self.policy, HOST)
        self.reader = StoreReader(self.store)

    # Commands, each durable when it returns.

    def decide(self, command: Command) -> Decision:
        """Execute a command, which may be refused."""
        decision = self.store.execute(command, self.clock.now_ms())
        self.store.sync()
        return decision

    def do(self, command: Command) -> Decision:
        """Execute a command, which must not be refused."""
        decision = self.decide(command)
        assert decision.refused is None, decision.refused
        return decision

    def refused(self, command: Command) -> RequestRefused:
        """Execute a command, which must be refused; return the refusal."""
        decision = self.decide(command)
        assert decision.refused is not None, decision
        assert decision.records == ()
        return decision.refused

    def hold(
        self, transaction_id: str, *messages: SentMessage, **fields: int | str | None
    ) -> HoldReply:
        """Prepare one request, with a default message if none is given."""
        if not messages:
            messages = (message(transaction_id, unique_key=transaction_id),)
        command = Prepare(group="pay", transaction_id=transaction_id, messages=messages)
        reply = self.do(msgspec.structs.replace(command, **fields)).reply
        assert isinstance(reply, HoldReply)
        return reply

    def commit(self, row: int, by: str = "producer") -> EndReply:
        """Commit the transaction of this half message."""
        return self._end(row, Resolution.COMMIT, by)

    def roll_back(self, row: int, by: str = "producer") -> EndReply:
        """Roll back the transaction of this half message."""
        return self._end(row, Resolution.ROLLBACK, by)

    def _end(self, row: int, resolution: Resolution, by: str) -> EndReply:
        reply = self.do(End(half_offset=row, resolution=resolution, by=by)).reply
        assert isinstance(reply, EndReply)
        return reply

    def obey(self, *verdicts: tuple[int, str], by: str = "settle") -> list[str]:
        """Obey verdicts, given as half offset and kind; return how each ended."""
        halves = [self.store.table.get(row) for row, _ in verdicts]
        command = Verdicts(
            half_offsets=[row for row, _ in verdicts],
            commits=[kind == "commit" for _, kind in verdicts],
            states=[half.state if half else 0 for half in halves],
            checks_sent=[half.checks_sent if half else 0 for half in halves],
            by=by,
        )
        reply = self.do(command).reply
        assert isinstance(reply, Obeyed)
        return [Ended(code).name.lower() for code in reply.ends]

    def append(self, *messages: SentMessage) -> Appended:
        """Store ordinary messages."""
        reply = self.do(Append(messages=messages or (message(),))).reply
        assert isinstance(reply, Appended)
        return reply

    def release(self) -> Decision:
        """Make due messages visible."""
        now_ms = self.clock.now_ms()
        return self.do(Release(half_offsets=tuple(self.store.table.due(now_ms, 1_000))))

    def decide_batch(
        self, batch_id: int | str, *claims: tuple[str, int, int], query_id: str = "q"
    ) -> BatchReply:
        """Commit these attempts, given as id, last number and rows."""
        attempts = tuple(
            AttemptClaim(transaction_id=name, last_number=last, rows=rows)
            for name, last, rows in claims
        )
        command = DecideBatch(
            app_id="app", query_id=query_id, batch_id=batch_id, attempts=attempts, by="spark"
        )
        reply = self.do(command).reply
        assert isinstance(reply, BatchReply)
        return reply

    def roll_segment(self) -> int:
        """Begin a new segment; return where it starts."""
        before = len(self.store.log.segments)
        while len(self.store.log.segments) == before:
            self.append(message(bytes(1500), topic="filler"))
        return self.store.log.segments[-1].start

    def retain(self) -> Removed:
        """Delete what retention allows now."""
        return retain(self.store, self.clock.now_ms())

    # Restarts and crashes.

    def closed_and_opened(self, **config: int | str) -> Driver:
        """Stop cleanly and open the same disk again."""
        self.store.close()
        return self.opened_again(**config)

    def opened_again(self, **config: int | str) -> Driver:
        """Open the same disk again, as after the process was killed without a power cut."""
        changes = {**self.changes, **config}
        self.let_go()
        return Driver(self.disk, clock=self.clock, policy=self.policy, **changes)

    def restarted(self, how: str) -> Driver:
        """Restart as told: "closed", "crashed", or in any other case without a checkpoint."""
        if how == "closed":
            return self.closed_and_opened()
        if how == "crashed":
            return self.crashed()
        self.store.close()
        for path in (checkpoints.PATH, checkpoints.PREVIOUS):
            self.disk.remove(path)
        return self.opened_again()

    def crashed(self, survivors: Survivors = nothing_survives, **config: int | str) -> Driver:
        """Cut the power and open what is left."""
        disk = faulty(self).crash(survivors)
        self.let_go()
        changes = {**self.changes, **config}
        return Driver(disk, clock=self.clock, policy=self.policy, **changes)

    def let_go(self) -> None:
        """End the connections that the system would end for a dead process."""
        if self.store.follower is not None:
            self.store.follower.give_back()

    # Views.

    def messages(self, topic: str = "orders", queue_id: int = 0) -> list[StoredMessage]:
        """Everything visible in a queue."""
        queue = self.reader.queue(topic, queue_id)
        if queue is None or queue.start == queue.end:
            return []
        pulled = self.reader.pull(topic, queue_id, queue.start, count_max=100_000, bytes_max=2**40)
        assert pulled.status is ReadStatus.FOUND
        assert pulled.next_offset == pulled.end == queue.end
        return [decode(one) for one in pulled.messages]

    def bodies(self, topic: str = "orders", queue_id: int = 0) -> list[str]:
        """The bodies of everything visible in a queue."""
        return [one.body.decode() for one in self.messages(topic, queue_id)]

    def half(self, row: int) -> Half:
        """Return a row, which must exist."""
        return self.store.core.row(row)

    def known_rows(self) -> dict[int, Half]:
        """All known rows."""
        table = self.store.table
        numbers = {*range(table.start, table.end), *table.survivors.rows}
        return {row: half for row in sorted(numbers) if (half := table.get(row)) is not None}

    def picture(self) -> dict[str, Any]:
        """Everything that a restart must restore."""
        core = self.store.core
        queues = {}
        for queue in self.store.queues.values():
            key = (queue.topic, queue.queue_id)
            queues[key] = (queue.start, queue.end, self.messages(*key))
        rows = {}
        for row, half in self.known_rows().items():
            decided = self.store.table.decided_by(half) if is_half_decided(half) else None
            rows[row] = (msgspec.structs.replace(half, op_offset=-1), decided)
        return {
            "queues": queues,
            "rows": rows,
            "needed": self.store.table.needed,
            "rows_end": self.store.table.end,
            "names": (core.names.queues, core.names.origins.named, core.names.deleted),
            "origins": core.names.origins.saved(),
            "catalog": core.catalog.saved(),
            "queue_ends": dict(core.queue_ends),
            "parts": core.parts,
            "heads": core.heads,
            "delays": core.delays,
            "resumed": core.resumed_at_ms,
            "batches": core.batches.apps,
            "pops": core.pops.groups,
            "log": (self.store.log.start, self.store.log.end),
            "at_ms": self.store.last_at_ms,
        }


def is_half_decided(half: Half) -> bool:
    """Whether it is a decided half message; scheduled messages have no decision."""
    return half.state in DECIDED and half.origin != 2**32 - 1


def releasable(table: StateTable, now_ms: int, limit: int) -> list[int]:
    """Committed rows whose time to become visible has come, sorted by time."""
    while table.releases.sort_one(now_ms):
        pass
    return table.releases.first(now_ms, limit)


def faulty(driver: Driver) -> FaultyDisk:
    """The driver's disk, which must be a double."""
    assert isinstance(driver.disk, FaultyDisk)
    return driver.disk
