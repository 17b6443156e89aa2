"""The engine on a disk answers like the core in memory, whatever happens to its process."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.store.config import StoreConfig
from escrowmq.testing import Engine, FaultyDisk, MemoryEngine, message
from escrowmq.testing.survivors import everything_survives
from escrowmq.transaction.commands import (
    Appended,
    Command,
    DecideBatch,
    Decision,
    HoldReply,
    Prepare,
)
from escrowmq.transaction.recall_commands import Recall
from tests.unit.transaction.steps import POLICY, STEPS, Pass, aimed

CONFIG = StoreConfig(segment_bytes_max=4_096, checkpoint_bytes=4_096, chunk_rows=8, id_window_ms=0)


class Fate(Enum):
    """Events that may happen between two commands."""

    CHECKPOINT = "checkpoint"
    RESTART = "restart"
    POWER_CUT = "power cut"
    KILL = "kill"
    REBUILD = "rebuild"


LISTS = st.lists(st.one_of(STEPS, STEPS, STEPS, st.sampled_from(Fate)), min_size=20, max_size=60)


def suffer(engine: Engine, fate: Fate) -> Engine:
    match fate:
        case Fate.CHECKPOINT:
            engine.checkpoint()
            return engine
        case Fate.RESTART:
            return engine.restart()
        case Fate.POWER_CUT:
            return engine.crash()
        case Fate.KILL:
            return engine.crash(everything_survives)
    assert isinstance(engine.disk, FaultyDisk)
    disk = engine.disk.crash(everything_survives)
    for name in disk.list("statetable"):
        disk.flip_bit(f"statetable/{name}", 3, 0)
    return Engine(disk, clock=engine.clock, config=CONFIG, policy=POLICY)


def heard(decision: Decision) -> object:
    """What a caller learns from a decision.

    Log offsets may differ: after a restart the store no longer knows that a half message was
    carried forward recently, so it copies it again.
    """
    reply = decision.reply
    if isinstance(reply, HoldReply | Appended):
        reply = msgspec.structs.replace(reply, log_offsets=[])
    refused = decision.refused
    if refused is not None:
        facts = {name: value for name, value in refused.fields.items() if name != "log_offset"}
        return reply, (refused.code, facts), decision.back_checks
    return reply, None, decision.back_checks


def both_know(engine: Engine, memory: MemoryEngine, command: Command) -> bool:
    """Whether both engines know the command's ids; on a disk, decided ones are forgotten."""
    ids: tuple[str, ...] = ()
    if isinstance(command, Prepare):
        ids = (command.transaction_id,)
    elif isinstance(command, DecideBatch):
        ids = tuple(claim.transaction_id for claim in command.attempts)
    return all(engine.core.table.find(name) == memory.table.find(name) for name in ids if name)


def placed(engine: Engine, command: Command) -> Command:
    """Name the log offset that the message has on this disk; see ``heard``."""
    half = engine.core.table.get(command.half_offset) if isinstance(command, Recall) else None
    return command if half is None else msgspec.structs.replace(command, log_offset=half.log_offset)


def rows(engine: Engine | MemoryEngine) -> list[tuple[Any, ...]]:
    core = engine.core
    halves = map(core.row, range(core.table.end))
    return [
        (h.half_offset, h.part, h.origin, h.queue, h.state, h.checks_sent, h.next_at_ms)
        for h in halves
    ]


def small_facts(engine: Engine | MemoryEngine) -> tuple[Any, ...]:
    core = engine.core
    parts = {head: (p.ranges, p.messages, p.bytes) for head, p in core.parts.items()}
    return core.queue_ends, parts, core.heads, core.delays, core.resumed_at_ms


@settings(max_examples=20, deadline=None)
@given(LISTS)
def test_both_levels_say_the_same(steps: list[Command | Pass | Fate]) -> None:
    memory = MemoryEngine(policy=POLICY)
    engine = Engine(clock=memory.clock, config=CONFIG, policy=POLICY)
    for level in (memory, engine):
        level.prepare("t", message(b"a"), message(b"b"), group="pay", number=0)
        level.prepare("u", message(b"a"), group="pay")
        level.prepare("v", message(b"a"), group="pay", number=0, bulk=True)
    for step in steps:
        if isinstance(step, Pass):
            memory.clock.advance(ms=step.ms)
        elif isinstance(step, Fate):
            engine = suffer(engine, step)
        else:
            command = aimed(memory, step)
            if both_know(engine, memory, command):
                told = heard(engine.submit(placed(engine, command)))
                assert told == heard(memory.submit(command)), command
        assert rows(engine) == rows(memory), step
        assert small_facts(engine) == small_facts(memory), step
    for queue_id in range(2):
        here = [m.body for m in engine.pull("orders", queue_id)]
        assert here == [m.body for m in memory.pull("orders", queue_id)]
