"""Whatever is asked, in any order: the laws hold, and a replay gives the same state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.testing import MemoryEngine, message
from escrowmq.testing.invariants import Witness
from escrowmq.testing.memory_log import MemoryFrame
from escrowmq.transaction.commands import Command
from tests.unit.transaction.steps import LISTS, POLICY, Pass, aimed

EXAMPLES = 20


@dataclass
class Run:
    """An engine that ran these steps, checked after each."""

    steps: list[Command | Pass]
    engine: MemoryEngine = field(default_factory=lambda: MemoryEngine(policy=POLICY))

    def __post_init__(self) -> None:
        self.engine.prepare("t", message(b"a"), message(b"b"), group="pay", number=0)
        self.engine.prepare("u", message(b"a"), group="pay")
        self.engine.prepare("v", message(b"a"), group="pay", number=0, bulk=True)
        witness = Witness(self.engine.core)
        for step in self.steps:
            if isinstance(step, Pass):
                self.engine.clock.advance(ms=step.ms)
                continue
            before = len(self.engine.frames)
            decision = self.engine.submit(aimed(self.engine, step))
            written = self.engine.frames[before:]
            # A refusal writes a record only when a commit is too late for its topic: it parks it.
            is_late = decision.refused is not None and decision.refused.code == "topic_deleted"
            assert decision.refused is None or is_late or not written
            witness.check(record for frame in written for record in frame.records)


def state_of(engine: MemoryEngine) -> dict[str, Any]:
    """Everything that the core and its table know."""
    core = engine.core
    return {
        "rows": engine.table.rows,
        "end": engine.table.end,
        "queues": core.names.queues,
        "queues_end": core.names.queues_end,
        "deleted": core.names.deleted,
        "catalog": core.catalog.saved(),
        "access_keys": (core.catalog.access_keys, core.catalog.certificates),
        "uses": core.uses.saved(),
        "origins": (core.names.origins.named, core.names.origins.saved()),
        "queue_ends": core.queue_ends,
        "parts": msgspec.to_builtins(core.parts),
        "heads": core.heads,
        "delays": core.delays,
        "resumed_at_ms": core.resumed_at_ms,
        "carried_at_ms": core.carried_at_ms,
        "batches": (msgspec.to_builtins(core.batches.apps), core.batches.expired.saved()),
    }


def replayed(frames: list[MemoryFrame], times: int = 1) -> MemoryEngine:
    """A fresh engine to which each record was applied `times` times in a row."""
    engine = MemoryEngine(policy=POLICY)
    for frame in frames:
        engine.log.take(frame)
        for record in frame.records:
            for _ in range(times):
                engine.core.apply(record, frame.where)
    return engine


@settings(max_examples=EXAMPLES, deadline=None)
@given(LISTS)
def test_the_laws_hold_after_every_step(steps: list[Command | Pass]) -> None:
    Run(steps)


@settings(max_examples=EXAMPLES, deadline=None)
@given(LISTS)
def test_replaying_the_log_gives_the_state_that_was_live(steps: list[Command | Pass]) -> None:
    engine = Run(steps).engine
    assert state_of(replayed(engine.frames)) == state_of(engine)


@settings(max_examples=EXAMPLES, deadline=None)
@given(LISTS)
def test_applying_every_record_twice_changes_nothing(steps: list[Command | Pass]) -> None:
    engine = Run(steps).engine
    assert state_of(replayed(engine.frames, times=2)) == state_of(engine)


@settings(max_examples=EXAMPLES, deadline=None)
@given(LISTS, st.integers(min_value=0, max_value=30))
def test_replaying_from_any_earlier_point_on_top_of_the_end_converges(
    steps: list[Command | Pass], start: int
) -> None:
    """So recovery may start with facts that are newer than the log it replays."""
    engine = Run(steps).engine
    before = msgspec.to_builtins(state_of(engine))
    engine.apply(engine.frames[start:])
    assert msgspec.to_builtins(state_of(engine)) == before


@settings(max_examples=EXAMPLES, deadline=None)
@given(LISTS)
def test_deciding_changes_nothing(steps: list[Command | Pass]) -> None:
    engine = Run(steps).engine
    before = msgspec.to_builtins(state_of(engine))
    for step in steps:
        if not isinstance(step, Pass):
            engine.core.decide(aimed(engine, step), engine.clock.now_ms())
    assert msgspec.to_builtins(state_of(engine)) == before
