"""The clocks of a broker, each with one purpose.

``now_ms`` is store time: due times, delays, retries, checks, ages, retention, facts, and all times
in answers and in the status. ``monotonic_ms`` is for sessions and locks. ``wall_ms`` is only for
comparisons with other clocks. Nothing else in the broker reads a ``Clock``.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from escrowmq.broker.write.inbox import QueuedCommand
from escrowmq.broker.write.store_time import ClockGap, StoreTime
from escrowmq.broker.write.writer import OnDurable, Writer
from escrowmq.model.clock import GAP_MS, Clock, ClockReading, read
from escrowmq.model.errors import Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.protocol.message.ids import IPV4_HOST_BYTES
from escrowmq.store.recovery.recovery import RecoveryResult
from escrowmq.store.store import Store
from escrowmq.transaction.commands import Append, Decision, MoveTime, Prepare
from escrowmq.transaction.records import AGREES, BEHIND, TimeMoved

log = event_log(__name__)

LOOKS_MAX = 4
"""Looks at the clock during a start: one result may make another look necessary."""
PORT_BYTES = 4
HOSTS_MAX = 64
"""Hosts for which the broker remembers whether they are this machine."""


class BrokerClock:
    """The broker's time. Use it from one event loop only."""

    def __init__(
        self, clock: Clock, store: Store, reading: ClockReading, found: RecoveryResult
    ) -> None:
        """``reading`` is the clock reading with which the store was started."""
        self._clock = clock
        self._started_boot_ms = reading.boot_ms
        self._boot_ns = clock.boot_ns
        self.time = StoreTime(
            store.last_at_ms, reading, last_at_ms=found.last_at_ms, moved=store.core.time_moved
        )
        self._writer: Writer | None = None
        #: The writer's own ``on_durable``, saved while ``_watched`` replaces it; None otherwise.
        self._unwatched: OnDurable | None = None
        self._is_ours: dict[bytes, bool] = {}
        #: The gap that the last log event about the clock reported.
        self._told = ClockGap.NONE

    # Current time.

    def now_ms(self) -> int:
        """Return store time."""
        time = self.time
        boot_ms = self._boot_ns() // 1_000_000
        if boot_ms >= time.slews_until_boot_ms:
            # This inlines ``StoreTime.at``, because it runs for each message.
            return boot_ms + time.offset_ms
        return time.at(boot_ms)

    def monotonic_ms(self) -> int:
        """Return the monotonic time, for sessions and locks; it has no meaning elsewhere."""
        return self._clock.monotonic_ms()

    def wall_ms(self) -> int:
        """Return the machine's wall clock."""
        return self._clock.now_ms()

    @property
    def uptime_ms(self) -> int:
        """Time since the broker started, unaffected by moves of store time."""
        return self._boot_ms() - self._started_boot_ms

    def ago_ms(self, monotonic_ms: int) -> int:
        """Return the store time of a moment on the monotonic clock."""
        return self.now_ms() - (self._clock.monotonic_ms() - monotonic_ms)

    def wait_ms(self, deliver_at_ms: int, born_at_ms: int) -> int:
        """Return how long to hold a message that its sender wants delivered at ``deliver_at_ms``.

        Normally the sender's clock is taken to be the wall clock. If wall clock and store time are
        ``GAP_MS`` or more apart, the message's birth time shows which of them the sender uses. If
        it fits neither, the longer wait applies, so that no message is delivered early.
        """
        wall_ms, now_ms = self._clock.now_ms(), self.now_ms()
        clock_ms = wall_ms
        if abs(wall_ms - now_ms) >= GAP_MS and abs(born_at_ms - wall_ms) >= GAP_MS:
            is_by_store_time = abs(born_at_ms - now_ms) < GAP_MS
            clock_ms = now_ms if is_by_store_time else min(wall_ms, now_ms)
        return max(deliver_at_ms - clock_ms, 0)

    # Deleting.

    def deletion_now_ms(self, kept_ms: int) -> int:
        """Return the time by which to delete what is older than ``kept_ms``; 0 for nothing."""
        return self.time.deletion_now_ms(kept_ms, self._boot_ms())

    @property
    def may_delete(self) -> bool:
        """Whether the broker may delete anything because of its age."""
        return not self.deletion_waits

    @property
    def deletion_waits(self) -> str:
        """Why deletion by age waits; empty if it does not."""
        return self.time.deletion_waits(self._boot_ms())

    @property
    def deletion_waits_ms(self) -> int:
        """How much longer deletion by age waits, as far as the broker knows."""
        return self.time.deletion_waits_ms(self._boot_ms())

    def _boot_ms(self) -> int:
        return self._boot_ns() // 1_000_000

    # Comparing with the wall clock.

    async def start(self, writer: Writer) -> None:
        """Compare store time with the wall clock before the broker accepts clients."""
        self._writer = writer
        with suppress(Unavailable):
            # If the store has no room for a record, store time stays as it is until a later look.
            for _ in range(LOOKS_MAX):
                if not await self.look():
                    break

    async def look(self) -> bool:
        """Compare store time with the wall clock, and record and apply a move that is due.

        Return whether one was due.
        """
        move = self.time.look(read(self._clock))
        if move is not None:
            assert self._writer is not None
            self.moved(await self._writer.submit(move))
        self._tell()
        return move is not None

    def confirmation(self, by: str) -> MoveTime | None:
        """Return the command that confirms the wall clock, or None if it is not in doubt."""
        return self.time.confirm(read(self._clock), by)

    def moved(self, decision: Decision) -> TimeMoved:
        """Apply a durable decision about store time."""
        (record,) = decision.records
        assert isinstance(record, TimeMoved)
        self.time.moved(record, self._boot_ms())
        if record.why not in (BEHIND, AGREES):
            log.warning(
                "store_time_moved",
                extra={
                    "from_ms": record.from_ms,
                    "to_ms": record.to_ms,
                    "why": record.why,
                    "by": record.by,
                },
            )
        self._tell()
        return record

    def _tell(self) -> None:
        """Log a change of the gap once, and watch clients' clocks while witnesses are wanted."""
        time = self.time
        if time.gap is self._told:
            return
        self._told = time.gap
        facts = {"gap_ms": time.gap_ms, "is_synchronized": time.is_synchronized}
        if time.gap is ClockGap.NONE:
            log.warning("clock_agrees", extra=facts)
        elif time.gap is ClockGap.AHEAD:
            log.error("clock_ahead", extra=facts)
        else:
            log.error("clock_behind", extra=facts)
        self._listen(is_wanted=time.wants_witnesses)

    # Clients' clocks as witnesses.

    def _listen(self, *, is_wanted: bool) -> None:
        """Install or remove the hook on durable batches; it costs nothing while it is removed."""
        writer = self._writer
        assert writer is not None
        if is_wanted and self._unwatched is None:
            self._unwatched, writer.on_durable = writer.on_durable, self._watched
        elif not is_wanted and self._unwatched is not None:
            writer.on_durable, self._unwatched = self._unwatched, None

    def _watched(self, batch: list[QueuedCommand], decisions: list[Decision]) -> None:
        assert self._unwatched is not None
        self._unwatched(batch, decisions)
        wall_ms = self._clock.now_ms()
        for waiting in batch:
            command = waiting.command
            if isinstance(command, Prepare | Append):
                for host, born_at_ms in _born(command):
                    if not self._is_here(host):
                        self.time.witness(host, born_at_ms, wall_ms)

    def _is_here(self, host: bytes) -> bool:
        """Whether the host is this machine, whose clock is in doubt and is no witness."""
        known = self._is_ours.get(host)
        if known is None:
            if len(self._is_ours) >= HOSTS_MAX:
                self._is_ours.clear()
            known = self._is_ours[host] = is_local(host)
        return known


def _born(command: Prepare | Append) -> list[tuple[bytes, int]]:
    """Return host and birth time of a request's first message; nothing if it is a retry."""
    columns = command.columns if isinstance(command, Prepare) else None
    if columns is not None:
        return [(columns.born_host[:-PORT_BYTES], int(columns.born_at_ms[0]))]
    # A retry keeps its original birth time, which says nothing about the sender's clock now.
    return [
        (message.born_host[:-PORT_BYTES], message.born_at_ms)
        for message in command.messages[:1]
        if not message.reconsume_times
    ]


def is_local(host: bytes) -> bool:
    """Whether a packed IP address belongs to this machine, which is so if it can be bound."""
    is_v4 = len(host) == IPV4_HOST_BYTES - PORT_BYTES
    family = socket.AF_INET if is_v4 else socket.AF_INET6
    with suppress(OSError, ValueError), socket.socket(family, socket.SOCK_DGRAM) as bound:
        bound.bind((socket.inet_ntop(family, host), 0))
        return True
    return False
