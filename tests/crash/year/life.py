"""The events of a day: clients come and go, and the machine has a trouble."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from random import Random
from typing import Any

from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.remoting.codes import ResponseCode
from escrowmq.protocol.remoting.frames import RemotingFrame
from tests.crash.year.kinds import KINDS
from tests.crash.year.machine import Machine
from tests.crash.year.model import (
    DAY_MS,
    HOUR_MS,
    Batch,
    Fate,
    Group,
    Half,
    Model,
    Queue,
    Topic,
    Wrong,
)
from tests.crash.year.talk import Talk, ending_of, messages_of
from tests.unit.broker.wire import facts

STEPS_PER_DAY = 4
STEP_MS = DAY_MS // STEPS_PER_DAY
NEW_TOPICS = 2
NEW_GROUPS = 4
NEW_CLIENTS = 8
NEW_ORIGINS = 4
MESSAGES_PER_STEP = 30
HALVES_PER_STEP = 8
#: How many days topics, groups and producers stay at most.
LIFE_DAYS = 6
HALF_DAYS_MAX = 6
DELAYS_MS = (1_000, 60_000, 3 * HOUR_MS, 30 * HOUR_MS, 4 * DAY_MS)
#: The longest that a broker may take for due work, in real time.
PATIENCE_S = 10.0
#: A group returns after this many days, when everything about it may have expired.
AWAY_DAYS = 8
FOREVER = "forever"
#: Share of the topics with undecided half messages that stay until those are decided.
KEPT_SHARE = 0.7


class Life(ABC):
    """One broker, its model, its clients, and counts of what happened."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self.machine = machine
        self.model = Model()
        self.rng = Random(seed)
        self.counts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self.day = 0
        self._numbers = 0
        #: The start of the log at the last look, to count deleted segments.
        self.log_started_at = 0

    @property
    def shortfalls(self) -> list[str]:
        """Kinds of events that never happened."""
        return [f"no {kind}" for kind in KINDS if not self.counts[kind]]

    async def begin(self) -> None:
        """Start the broker, with one topic that is never deleted."""
        await self.machine.start()
        talk = await self.machine.talk()
        await talk.make_topic(FOREVER, 2)
        self.model.make(FOREVER, 2, -1)

    async def live(self) -> None:
        """Run one day."""
        trouble_at = self.rng.randrange(STEPS_PER_DAY)
        talk = await self.machine.talk()
        await self._newcomers(talk)
        for step in range(STEPS_PER_DAY):
            talk = await self.machine.talk()
            await self.traffic(talk)
            if step == trouble_at:
                await self.trouble(talk)
                talk = await self.machine.talk()
            await self._consume(talk)
            await self.pass_time(STEP_MS)
        await self._farewells(await self.machine.talk())
        await self.settle_and_check()
        self.model.forget()
        await self.machine.hang_up()
        self.day += 1
        self.counts["days"] += 1

    # Time.

    async def pass_time(self, ms: int) -> None:
        self.model.now_ms += ms
        await self.machine.pass_time(ms)
        await self._read(await self.machine.talk())

    async def settle_and_check(self) -> None:
        """Wait until everything that must be visible is; check that nothing else changed."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        await self.pass_time(1_000)
        while missing := self.model.missing():
            if asyncio.get_running_loop().time() > deadline:
                raise Wrong(f"{len(missing)} messages are missing, such as {missing[0]}")
            await asyncio.sleep(0.02)
            await self.pass_time(1_000)
        await self._read_again(await self.machine.talk())
        log_start = self.machine.server.broker.store.log.start
        self.counts["segments deleted"] += log_start > self.log_started_at
        self.log_started_at = log_start

    # Clients that come and go.

    def new_name(self, kind: str) -> str:
        self._numbers += 1
        return f"{kind}-{self.day}-{self._numbers}"

    async def _newcomers(self, talk: Talk) -> None:
        rng, model = self.rng, self.model
        for _ in range(NEW_TOPICS):
            await self._make(talk, self.new_name("topic"), rng.randrange(1, 4))
        old = [name for name in model.incarnations if name not in model.topics]
        if old:
            await self._make(talk, rng.choice(old[-10:]), rng.randrange(1, 4))
            self.counts["topics made again"] += 1
        for _ in range(NEW_GROUPS):
            topic = rng.choice([FOREVER, *model.topics])
            name = self.new_name("group")
            model.groups[name] = Group(name, topic, self.day + rng.randrange(1, LIFE_DAYS))
            self.counts["groups"] += 1
        for _ in range(NEW_CLIENTS):
            group = rng.choice(list(model.groups))
            topic = model.groups[group].topic
            await talk.beat(self.new_name("client"), self.new_name("producer"), group, topic)
            self.counts["clients"] += 1
            await self._reconnected(talk)
        await self._returning_groups(talk)

    async def _reconnected(self, talk: Talk) -> None:
        """Give the next client a connection of its own."""
        talk.peer = (await self.machine.talk()).peer

    async def _make(self, talk: Talk, name: str, queues: int) -> None:
        await talk.make_topic(name, queues)
        self.model.make(name, queues, self.day + self.rng.randrange(1, LIFE_DAYS))
        self.counts["topics made"] += 1

    async def _returning_groups(self, talk: Talk) -> None:
        """A returning group continues at its offset or before, never after it."""
        for group in [one for one in self.model.away if one.last_day + AWAY_DAYS <= self.day]:
            self.model.away.remove(group)
            if group.topic != FOREVER or not group.committed or group.lost:
                continue
            for queue_id, committed in group.committed.items():
                found = await talk.offset_of(group.name, group.topic, queue_id)
                start, _ = await talk.bounds(group.topic, queue_id)
                if found is None or found > max(committed, start):
                    raise Wrong(
                        f"{group.name} read {group.topic} {queue_id} up to {committed}, and would "
                        f"begin at {'the end' if found is None else found}; it starts at {start}"
                    )
            self.counts["groups that returned"] += 1

    async def _farewells(self, talk: Talk) -> None:
        model = self.model
        for group in [one for one in model.groups.values() if one.last_day <= self.day]:
            del model.groups[group.name]
            model.away.append(group)
        for topic in [one for one in model.topics.values() if 0 <= one.last_day <= self.day]:
            await self._delete(talk, topic)

    async def _delete(self, talk: Talk, topic: Topic) -> None:
        """Delete a topic; if it has undecided half messages, use force or keep it for now."""
        model = self.model
        is_held = any(
            half.topic == topic.name and not model.is_orphan(half) for half in model.halves
        )
        if is_held:
            if await talk.deletes_topic(topic.name):
                raise Wrong(f"{topic.name} has undecided half messages and was deleted")
            if self.rng.random() < KEPT_SHARE:
                return
            await talk.delete_by_force(topic.name)
            self.counts["topics deleted by force"] += 1
        elif not await talk.deletes_topic(topic.name):
            raise Wrong(f"{topic.name} has nothing undecided and was not deleted")
        model.delete(topic.name)
        self.counts["topics deleted"] += 1
        for group in [one for one in model.groups.values() if one.topic == topic.name]:
            del model.groups[group.name]

    # Traffic.

    def some_topic(self) -> Topic:
        live = [
            one for one in self.model.topics.values() if one.last_day < 0 or one.last_day > self.day
        ]
        return self.rng.choice(live)

    async def traffic(self, talk: Talk) -> None:
        for _ in range(MESSAGES_PER_STEP):
            await self.send(talk)
        origins = [self.new_name("origin") for _ in range(NEW_ORIGINS // STEPS_PER_DAY)]
        self.counts["origins"] += len(origins)
        for number in range(HALVES_PER_STEP):
            await self.hold(talk, origins[number % len(origins)])
        for half in [one for one in self.model.halves if one.ends_on <= self.day]:
            await self.end(talk, half)
        await self._end_again(talk)
        await self._sink(talk)

    async def send(self, talk: Talk) -> None:
        topic, body = self.some_topic(), self.new_name("message")
        queue_id = self.rng.randrange(topic.queues)
        delay_ms = self.rng.choice(DELAYS_MS) if self.rng.random() < 0.2 else 0
        properties = {"TIMER_DELAY_MS": str(delay_ms)} if delay_ms else {}
        await talk.send(topic.name, queue_id, body, **properties)
        self.model.sent(body, topic.name, Fate.VISIBLE, delay_ms=delay_ms)
        self.counts["delayed" if delay_ms else "messages"] += 1

    async def hold(self, talk: Talk, group: str) -> None:
        rng = self.rng
        topic, body = self.some_topic(), self.new_name("half")
        delay_ms = rng.choice(DELAYS_MS) if rng.random() < 0.1 else 0
        more = {"TIMER_DELAY_MS": str(delay_ms)} if delay_ms else {}
        answer = await talk.hold(topic.name, rng.randrange(topic.queues), body, group, **more)
        self.model.sent(body, topic.name, Fate.HELD)
        held = ending_of(answer, group, topic.name)
        days = rng.choice((0, 0, 0, 0, 1, HALF_DAYS_MAX))
        half = Half(
            body=body,
            group=group,
            half_offset=held["half_offset"],
            log_offset=held["log_offset"],
            unique_key=held["unique_key"],
            topic=topic.name,
            is_commit=rng.random() < 0.7,
            ends_on=self.day + days,
            delay_ms=delay_ms,
        )
        self.model.halves.append(half)
        self.counts["halves"] += 1
        self.counts["halves that outlive retention"] += days == HALF_DAYS_MAX

    async def end(self, talk: Talk, half: Half) -> None:
        if half.is_commit and self.model.is_orphan(half):
            refused = await talk.end(held_of(half), is_commit=True)
            if refused.code == ResponseCode.SUCCESS:
                raise Wrong(f"{half} was committed, and its topic is deleted")
            self.counts["commits refused for their topic"] += 1
            half.is_commit = False
        answer = await talk.end(held_of(half), is_commit=half.is_commit)
        if answer.code != ResponseCode.SUCCESS:
            raise Wrong(f"the end of {half} was refused: {answer.code} {answer.remark}")
        self.model.decide(half, Fate.VISIBLE if half.is_commit else Fate.GONE)
        self.model.halves.remove(half)
        self.model.decided.append(half)
        self.counts["commits" if half.is_commit else "rollbacks"] += 1

    async def _end_again(self, talk: Talk) -> None:
        """Repeat a decision, which is accepted, and send the opposite, which is refused."""
        if not self.model.decided:
            return
        half = self.model.decided[-1]
        again = await talk.end(held_of(half), is_commit=half.is_commit)
        if again.code != ResponseCode.SUCCESS:
            raise Wrong(f"{half} was decided, and the same again is {again.code} {again.remark}")
        self.counts["decisions repeated"] += 1
        opposite = await talk.end(held_of(half), is_commit=not half.is_commit)
        if opposite.code == ResponseCode.SUCCESS:
            raise Wrong(f"{half} was decided, and the opposite was accepted")
        self.counts["contradictions refused"] += 1

    async def _sink(self, talk: Talk) -> None:
        """Run a query of a Spark sink that ends after one batch."""
        app_id, query_id = self.new_name("app"), self.new_name("query")
        self.counts["queries"] += 1
        bodies = [self.new_name("row") for _ in range(5)]
        attempt = self.new_name("attempt")
        await talk.hold_attempt(app_id, attempt, FOREVER, bodies)
        batch = Batch(app_id, query_id, 0, attempt, len(bodies), self.day)
        outcome = await _decide(talk, batch)
        if outcome != "decided":
            raise Wrong(f"{batch} is {outcome}")
        for body in bodies:
            self.model.sent(body, FOREVER, Fate.VISIBLE)
        self.counts["batches"] += 1
        self.model.batches.append(batch)
        old = self.rng.choice(self.model.batches)
        try:
            outcome = await _decide(talk, old)
        except RequestRefused as refused:
            # The broker may forget queries that ended long ago, but must not write their batches
            # again.
            if refused.code != "query_expired" or self.day - old.day < LIFE_DAYS:
                raise
        else:
            if outcome != "already_done":
                raise Wrong(f"{old} was decided, and again it is {outcome}")
        self.counts["batches repeated"] += 1

    # Reading.

    async def _read(self, talk: Talk) -> None:
        """Let the auditor read on in every queue."""
        model = self.model
        for queue in list(model.positions):
            offset = model.positions[queue]
            while True:
                answer = await talk.pull(*queue, offset)
                if answer.code == ResponseCode.PULL_OFFSET_MOVED:
                    before, offset = offset, self._moved(queue, offset, answer)
                    if offset == before:
                        break
                    continue
                found = messages_of(answer)
                for one in found:
                    offset, body = one.queue_offset, one.body.decode()
                    if offset < model.positions[queue]:
                        model.see_again(queue, offset, body)
                    else:
                        model.see(queue, offset, body)
                    offset += 1
                    self.counts["messages read"] += 1
                if not found:
                    break

    def _moved(self, queue: Queue, offset: int, answer: RemotingFrame) -> int:
        """Where the broker moves a reader: it may repeat messages, but must not skip any."""
        moved_to = int(facts(answer)["nextBeginOffset"])
        if moved_to > offset:
            raise Wrong(f"{queue} was read up to {offset}, and the broker goes on at {moved_to}")
        self.counts["readers moved back"] += moved_to < offset
        return moved_to

    async def _read_again(self, talk: Talk) -> None:
        """Read some queues from their starts, as a new reader."""
        queues = list(self.model.positions)
        for queue in self.rng.sample(queues, min(4, len(queues))):
            start, end = await talk.bounds(*queue)
            found: list[tuple[int, str]] = []
            offset = start
            while offset < end:
                messages = messages_of(await talk.pull(*queue, offset, group="again"))
                if not messages:
                    raise Wrong(f"{queue} is [{start}, {end}), and {offset} cannot be read")
                found += [(one.queue_offset, one.body.decode()) for one in messages]
                offset = messages[-1].queue_offset + 1
            self.counts["messages read again"] += len(found)
            self.model.check_again(queue, start, found)

    async def _consume(self, talk: Talk) -> None:
        """Each group reads everything and commits its offsets."""
        for group in self.model.groups.values():
            topic = self.model.topics[group.topic]
            await talk.beat(f"{group.name}-client", "pay", group.name, topic.name)
            for queue_id in range(topic.queues):
                start, end = await talk.bounds(group.topic, queue_id)
                known = await talk.offset_of(group.name, group.topic, queue_id)
                committed = group.committed.get(queue_id)
                if known is None and queue_id in group.lost:
                    committed = None
                if committed is not None and (known is None or known > max(committed, start)):
                    raise Wrong(
                        f"{group.name} read {queue_id} up to {committed}, and is at {known}"
                    )
                await talk.commit_offset(group.name, group.topic, queue_id, end)
                group.committed[queue_id] = end
                group.lazy.add(queue_id)
                group.lost.discard(queue_id)

    @abstractmethod
    async def trouble(self, talk: Talk) -> None:
        """Give the broker today's trouble."""


def held_of(half: Half) -> dict[str, Any]:
    return {
        "topic": half.topic,
        "producer_group": half.group,
        "half_offset": half.half_offset,
        "log_offset": half.log_offset,
        "unique_key": half.unique_key,
    }


async def _decide(talk: Talk, batch: Batch) -> str:
    return await talk.decide_batch(
        batch.app_id, batch.query_id, batch.number, batch.attempt, batch.messages
    )
