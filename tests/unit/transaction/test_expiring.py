"""Queries of Spark sinks expire by a command, and are refused when they return."""

from __future__ import annotations

from escrowmq.model.limits_config import DAY_MS
from escrowmq.testing import MemoryEngine
from escrowmq.transaction.commands import DecideBatch, Decision
from escrowmq.transaction.expiry_commands import (
    ExpireQueries,
)
from escrowmq.transaction.records import QueriesExpired


def decide(engine: MemoryEngine, batch_id: int, query_id: str = "q") -> Decision:
    return engine.submit(
        DecideBatch(app_id="app", query_id=query_id, batch_id=batch_id, attempts=(), by="spark")
    )


def test_a_query_that_decides_nothing_expires_and_is_refused_what_it_may_have_decided() -> None:
    engine = MemoryEngine()
    decide(engine, 4)
    engine.clock.advance(ms=30 * DAY_MS)
    decide(engine, 9, "young")
    command = ExpireQueries(queries=(("app", "q"), ("app", "young"), ("app", "nobody")))
    assert engine.submit(command).records == ()
    engine.clock.advance(ms=1)
    assert engine.submit(command).records == (QueriesExpired([("app", "q")]),)
    assert engine.submit(command).records == ()
    refused = decide(engine, 4).refused
    assert refused is not None
    assert refused.code == "query_expired"
    assert refused.fields["batch_id"] == 4
    assert decide(engine, 10).refused is None
    restarted = engine.restart()
    assert restarted.core.batches.apps == engine.core.batches.apps
    assert restarted.core.batches.judge("app", "q", 4) == "done"


def test_numbers_of_expired_queries_are_taken_for_others_of_the_app() -> None:
    engine = MemoryEngine()
    decide(engine, 4)
    engine.clock.advance(ms=30 * DAY_MS + 1)
    engine.submit(ExpireQueries(queries=(("app", "q"),)))
    assert engine.core.batches.knows("app")
    assert not engine.core.batches.knows("another")
    refused = decide(engine, 4, "other").refused
    assert refused is not None
    assert refused.code == "batch_decided_by_another_query"
    assert refused.fields["last_decided"] == -1
    assert decide(engine, 5, "other").refused is None
