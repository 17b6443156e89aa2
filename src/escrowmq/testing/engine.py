"""An engine in the test's process: a real store, a manual clock, and no sockets.

    engine = Engine()
    held = engine.prepare("order-1", message(b"paid"))
    engine.commit(held.half_offset)
    assert [m.body for m in engine.pull("orders")] == [b"paid"]

``submit`` does the writer's work synchronously: when it returns, the command is decided, applied,
written, flushed and published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.protocol.message.stored_message import StoredMessage, decode
from escrowmq.store.config import StoreConfig
from escrowmq.store.reading.reader import ReadStatus, StoreReader
from escrowmq.store.recovery.recovery import open_store
from escrowmq.store.retention.retention import retain
from escrowmq.store.retention.retirement import Removed
from escrowmq.testing.calls import Calls
from escrowmq.testing.clock import ManualClock
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import Survivors, nothing_survives
from escrowmq.transaction.commands import Command, Decision
from escrowmq.transaction.policy import CheckPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.store.disk.disk import Disk
    from escrowmq.transaction.core import Transactions

STORE_HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")
_PULLED_MAX = 1_000


class Engine(Calls):
    """An open store with its writer and reader."""

    def __init__(
        self,
        disk: Disk | None = None,
        *,
        clock: ManualClock | None = None,
        config: StoreConfig | None = None,
        policy: CheckPolicy | None = None,
    ) -> None:
        super().__init__(clock, policy)
        self.disk: Disk = FaultyDisk() if disk is None else disk
        self.config = StoreConfig() if config is None else config
        # ``found`` is what recovery found when this engine was opened.
        self.store, self.found = open_store(self.disk, self.config, self.policy, STORE_HOST)
        self.reader = StoreReader(self.store)

    @property
    def core(self) -> Transactions:
        """The transactions, for inspection."""
        return self.store.core

    def submit(self, command: Command) -> Decision:
        """Execute the command and make it durable. A refusal is in the decision."""
        return self.submit_all([command])[0]

    def submit_all(self, commands: Iterable[Command]) -> list[Decision]:
        """Execute commands as one batch, with one write and one flush."""
        decisions = [self.store.execute(command, self.clock.now_ms()) for command in commands]
        self.store.sync()
        if self.store.checkpoint_due and self.store.space.look_for_files():
            self.store.checkpoint()
        return decisions

    def due(self, until_ms: int, limit: int) -> list[int]:
        """Return rows that are due by then: undecided heads and scheduled messages."""
        return self.store.table.due(until_ms, limit)

    def pull(self, topic: str, queue_id: int = 0, offset: int = 0) -> list[StoredMessage]:
        """Return all visible messages from this queue offset on, as consumers see them."""
        messages: list[StoredMessage] = []
        while True:
            pulled = self.reader.pull(
                topic, queue_id, offset, count_max=_PULLED_MAX, bytes_max=2**30
            )
            messages += map(decode, pulled.messages)
            if pulled.status not in (ReadStatus.FOUND, ReadStatus.BEHIND_START):
                return messages
            offset = pulled.next_offset

    def retain(self) -> Removed:
        """Delete what retention allows to delete now."""
        return retain(self.store, self.clock.now_ms())

    def checkpoint(self) -> None:
        """Take a checkpoint now."""
        self.store.checkpoint()

    def close(self) -> None:
        """Take a checkpoint, and close all files."""
        self.store.close()

    def restart(self) -> Engine:
        """Close the store, and return a new engine on it."""
        self.close()
        return self._on(self.disk)

    def crash(self, survivors: Survivors = nothing_survives) -> Engine:
        """Cut the power: return a new engine on the remaining disk, without closing this one."""
        if not isinstance(self.disk, FaultyDisk):
            raise TypeError("only a FaultyDisk can lose power")
        return self._on(self.disk.crash(survivors))

    def _on(self, disk: Disk) -> Engine:
        return Engine(disk, clock=self.clock, config=self.config, policy=self.policy)
