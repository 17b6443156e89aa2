"""The troubles of a machine in a year, and how its broker must handle them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.crash.year.life import Life, held_of
from tests.crash.year.machine import Machine
from tests.crash.year.model import DAY_MS, HOUR_MS, Fate, Model
from tests.crash.year.talk import Refused, Talk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


class Year(Life):
    """One trouble a day, in rotation."""

    def __init__(self, machine: Machine, seed: int) -> None:
        super().__init__(machine, seed)
        self._backup: tuple[Path, Model] | None = None
        self.troubles: list[Callable[[Talk], Awaitable[None]]] = [
            self._restart,
            self._crash,
            self._clock_ahead,
            self._full_disk,
            self._take_backup,
            self._suspend,
            self._restore,
            self._clock_back,
            self._power_cut,
            self._torn_crash,
            self._lose_meta,
        ]

    async def trouble(self, talk: Talk) -> None:
        """Cause the day's trouble."""
        await self.troubles[self.day % len(self.troubles)](talk)

    def _offsets_are_written(self) -> None:
        for group in (*self.model.groups.values(), *self.model.away):
            group.lazy.clear()

    def _offsets_may_be_lost(self) -> None:
        """A crash may lose the offsets of the last seconds."""
        for group in (*self.model.groups.values(), *self.model.away):
            group.lost |= group.lazy

    async def _restart(self, _talk: Talk) -> None:
        await self.machine.stop()
        self._offsets_are_written()
        self.machine.clock.advance(ms=HOUR_MS)
        self.model.now_ms += HOUR_MS
        await self.machine.start()
        self.counts["restarts"] += 1

    async def _crash(self, talk: Talk, *, is_torn: bool = False) -> None:
        """Kill the broker while clients wait for answers."""
        topic = self.some_topic()
        for _ in range(5):
            body = self.new_name("unanswered")
            talk.send_and_leave(topic.name, 0, body)
            self.model.sent(body, topic.name, Fate.UNKNOWN)
        commits = (half for half in self.model.halves if half.is_commit)
        halves = [half for half in commits if not self.model.is_orphan(half)][:3]
        for half in halves:
            # Its producer repeats it later.
            talk.end_and_leave(held_of(half), is_commit=True)
            self.model.messages[half.body].fate = Fate.UNKNOWN
        # Let some of the requests arrive.
        await asyncio.sleep(0.002 * self.rng.random())
        self._offsets_may_be_lost()
        await self.machine.kill(self.rng, is_torn=is_torn)
        self.counts["crashes"] += 1
        self.counts["answers lost"] += 5 + len(halves)
        self.counts["torn tails"] += is_torn
        talk = await self.machine.talk()
        for half in halves:
            await self.end(talk, half)

    async def _torn_crash(self, talk: Talk) -> None:
        await self._crash(talk, is_torn=True)

    async def _with_wrong_clock(self, talk: Talk, ms: int) -> None:
        self.machine.jump(ms)
        await self.traffic(talk)
        # Retention must not trust the wrong clock.
        await self.pass_time(HOUR_MS)
        self.machine.jump(-ms)
        await self.pass_time(1_000)

    async def _clock_ahead(self, talk: Talk) -> None:
        await self._with_wrong_clock(talk, 4 * DAY_MS)
        await self.pass_time(4 * HOUR_MS)
        self.counts["clocks ahead"] += 1

    async def _clock_back(self, talk: Talk) -> None:
        await self._with_wrong_clock(talk, -3 * HOUR_MS)
        self.counts["clocks back"] += 1

    async def _suspend(self, _talk: Talk) -> None:
        self.machine.suspend(HOUR_MS)
        self.model.now_ms += HOUR_MS
        await self.pass_time(1_000)
        self.counts["suspensions"] += 1

    async def _power_cut(self, _talk: Talk) -> None:
        self._offsets_may_be_lost()
        await self.machine.kill(self.rng, is_torn=True)
        await self.machine.stop()
        self.machine.power_off(5 * HOUR_MS)
        self.model.now_ms += 5 * HOUR_MS
        await self.machine.start()
        self.counts["power cuts"] += 1

    async def _full_disk(self, talk: Talk) -> None:
        """On a full disk the broker refuses messages, takes decisions, and can restart."""
        self.machine.fill_disk(is_full=True)
        for _ in range(5):
            topic, body = self.some_topic(), self.new_name("too-much")
            try:
                await talk.send(topic.name, 0, body)
            except Refused:
                self.model.sent(body, topic.name, Fate.GONE)
                self.counts["messages refused for room"] += 1
            else:
                self.model.sent(body, topic.name, Fate.VISIBLE)
        for half in self.model.halves[:2]:
            await self.end(talk, half)
        await self.pass_time(HOUR_MS)
        await self.machine.restart()
        await self.pass_time(HOUR_MS)
        self.machine.fill_disk(is_full=False)
        self.counts["full disks"] += 1

    async def _lose_meta(self, _talk: Talk) -> None:
        """Lose ``meta.db``: topics and groups come back, and groups read from the start."""
        await self.machine.lose_meta(self.rng)
        self.counts["small tables lost"] += 1

    async def _take_backup(self, _talk: Talk) -> None:
        if self._backup is None:
            self._offsets_are_written()
            self._backup = await self.machine.back_up(), self.model.copy()
            self.counts["backups"] += 1

    async def _restore(self, _talk: Talk) -> None:
        """Restore a backup: history goes back to it, time does not."""
        if self._backup is None:
            return
        (directory, model), self._backup = self._backup, None
        model.now_ms = self.model.now_ms
        self.model = model
        await self.machine.restore(directory)
        self.log_started_at = 0
        # Messages unread at the backup are old by now; the auditor reads them before they are
        # deleted.
        await self.pass_time(1_000)
        self.counts["restores"] += 1
