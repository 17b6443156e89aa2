"""The clocks of a broker, each under one name.

``now_ms`` is store time: due times, delays, retries, checks, ages, retention, facts, and every time
that an answer or the status tells.  ``monotonic_ms`` is for sessions and locks.  ``wall_ms`` is
only for what is compared with other clocks.  Nothing else in the broker reads a ``Clock``.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from escrowmq.broker.store_time import Gap, StoreTime
from escrowmq.model.clock import GAP_MS, read
from escrowmq.model.errors import Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.protocol.ids import IPV4_HOST_BYTES
from escrowmq.transaction.commands import Append, Decision, MoveTime, Prepare
from escrowmq.transaction.records import AGREES, BEHIND, TimeMoved

if TYPE_CHECKING:
    from escrowmq.broker.inbox import Waiting
    from escrowmq.broker.writer import OnDurable, Writer
    from escrowmq.model.clock import Clock, Reading
    from escrowmq.store.recovery import Found
    from escrowmq.store.store import Store

log = event_log(__name__)

LOOKS_MAX = 4
"""What a start can find about its clock, one after the other."""
PORT_BYTES = 4
HOSTS_MAX = 64
"""Hosts of which it is remembered whether they are this one."""


class BrokerClock:
    """Belongs to one event loop."""

    def __init__(self, clock: Clock, store: Store, reading: Reading, found: Found) -> None:
        """``reading`` is the one with which the store was started."""
        self._clock = clock
        self._started_boot_ms = reading.boot_ms
        self._boot_ns = clock.boot_ns
        self.time = StoreTime(
            store.last_at_ms, reading, last_at_ms=found.last_at_ms, moved=store.core.time_moved
        )
        self._writer: Writer | None = None
        #: What the writer calls with durable batches while nobody listens to clients.
        self._unwatched: OnDurable | None = None
        self._is_ours: dict[bytes, bool] = {}
        #: The last gap that was told of.
        self._told = Gap.NONE

    # What time it is.

    def now_ms(self) -> int:
        """Store time."""
        time = self.time
        boot_ms = self._boot_ns() // 1_000_000
        if boot_ms >= time.slews_until_boot_ms:
            # As ``at`` does it, without the call: it is asked for each message.
            return boot_ms + time.offset_ms
        return time.at(boot_ms)

    def monotonic_ms(self) -> int:
        """For sessions and locks: it never jumps, and means nothing to anybody else."""
        return self._clock.monotonic_ms()

    def wall_ms(self) -> int:
        """What the machine believes."""
        return self._clock.now_ms()

    @property
    def uptime_ms(self) -> int:
        """How long ago the broker was started, also if store time has moved since."""
        return self._boot_ms() - self._started_boot_ms

    def ago_ms(self, monotonic_ms: int) -> int:
        """The store time of a moment on the monotonic clock."""
        return self.now_ms() - (self._clock.monotonic_ms() - monotonic_ms)

    def wait_ms(self, deliver_at_ms: int, born_at_ms: int) -> int:
        """How long a message waits that is to be delivered at this time of its sender's clock.

        That clock is ours.  Only where ours and store time are far apart the sender may go by
        either, and its message says when it was born.  If it goes by neither, nothing comes early.
        """
        wall_ms, now_ms = self._clock.now_ms(), self.now_ms()
        clock_ms = wall_ms
        if abs(wall_ms - now_ms) >= GAP_MS and abs(born_at_ms - wall_ms) >= GAP_MS:
            is_by_store_time = abs(born_at_ms - now_ms) < GAP_MS
            clock_ms = now_ms if is_by_store_time else min(wall_ms, now_ms)
        return max(deliver_at_ms - clock_ms, 0)

    # Deleting.

    def deletion_now_ms(self, kept_ms: int) -> int:
        """The time by which what is older than ``kept_ms`` may be deleted; 0 if nothing may."""
        return self.time.deletion_now_ms(kept_ms, self._boot_ms())

    @property
    def may_delete(self) -> bool:
        """Whether anything may be deleted for its age."""
        return not self.deletion_waits

    @property
    def deletion_waits(self) -> str:
        """Why not; empty if it may."""
        return self.time.deletion_waits(self._boot_ms())

    @property
    def deletion_waits_ms(self) -> int:
        """For how long not, as far as that is known."""
        return self.time.deletion_waits_ms(self._boot_ms())

    def _boot_ms(self) -> int:
        return self._boot_ns() // 1_000_000

    # Looking at the wall clock.

    async def start(self, writer: Writer) -> None:
        """Settle what the stop has left open, before anybody is let in."""
        self._writer = writer
        with suppress(Unavailable):
            # Without room for a record it goes on as it is, and looks again later.
            for _ in range(LOOKS_MAX):
                if not await self.look():
                    break

    async def look(self) -> bool:
        """Compare with the wall clock, and do what follows from it; whether anything did."""
        move = self.time.look(read(self._clock))
        if move is not None:
            assert self._writer is not None
            self.moved(await self._writer.submit(move))
        self._tell()
        return move is not None

    def confirmation(self, by: str) -> MoveTime | None:
        """The command by which a person confirms the wall clock; None if nobody doubts it."""
        return self.time.confirm(read(self._clock), by)

    def moved(self, decision: Decision) -> TimeMoved:
        """What was decided about store time is durable: do it."""
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
        """Tell of a gap once, and listen to clients while one is open."""
        time = self.time
        if time.gap is self._told:
            return
        self._told = time.gap
        facts = {"gap_ms": time.gap_ms, "is_synchronized": time.is_synchronized}
        if time.gap is Gap.NONE:
            log.warning("clock_agrees", extra=facts)
        elif time.gap is Gap.AHEAD:
            log.error("clock_ahead", extra=facts)
        else:
            log.error("clock_behind", extra=facts)
        self._listen(is_wanted=time.wants_witnesses)

    # What clients' clocks say.

    def _listen(self, *, is_wanted: bool) -> None:
        """Look at what clients send, or no longer: it costs nothing while nobody asks."""
        writer = self._writer
        assert writer is not None
        if is_wanted and self._unwatched is None:
            self._unwatched, writer.on_durable = writer.on_durable, self._watched
        elif not is_wanted and self._unwatched is not None:
            writer.on_durable, self._unwatched = self._unwatched, None

    def _watched(self, batch: list[Waiting], decisions: list[Decision]) -> None:
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
        """Whether this is an address of this machine, whose clock it is about."""
        known = self._is_ours.get(host)
        if known is None:
            if len(self._is_ours) >= HOSTS_MAX:
                self._is_ours.clear()
            known = self._is_ours[host] = is_local(host)
        return known


def _born(command: Prepare | Append) -> list[tuple[bytes, int]]:
    """Where and when the first message of a request was made, if it was made just now."""
    columns = command.columns if isinstance(command, Prepare) else None
    if columns is not None:
        return [(columns.born_host[:-PORT_BYTES], int(columns.born_at_ms[0]))]
    # A retry keeps the time at which it was first sent.
    return [
        (message.born_host[:-PORT_BYTES], message.born_at_ms)
        for message in command.messages[:1]
        if not message.reconsume_times
    ]


def is_local(host: bytes) -> bool:
    """Whether a packed IP address is one of this machine: then it can be bound."""
    is_v4 = len(host) == IPV4_HOST_BYTES - PORT_BYTES
    family = socket.AF_INET if is_v4 else socket.AF_INET6
    with suppress(OSError, ValueError), socket.socket(family, socket.SOCK_DGRAM) as bound:
        bound.bind((socket.inet_ntop(family, host), 0))
        return True
    return False
