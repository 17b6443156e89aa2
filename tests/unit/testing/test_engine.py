"""The in-process engine: what it acknowledges is durable, and it answers as the broker does."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.model.resolution import Resolution
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.disk import OsDisk
from escrowmq.testing import Engine, FaultyDisk, ManualClock, message
from escrowmq.testing.faulty_disk import DiskCall
from escrowmq.testing.journal import Flush
from escrowmq.testing.survivors import everything_survives
from escrowmq.transaction.commands import End, Prepare
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.states import State

HOUR_MS = 3_600_000


def bodies(engine: Engine, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    return [m.body for m in engine.pull(topic, queue_id)]


def test_a_message_is_visible_after_its_commit_and_not_before() -> None:
    engine = Engine()
    held = engine.prepare("order-1", message(b"paid", keys=("k",), tags="t"))
    assert engine.pull("orders") == []
    engine.clock.advance(seconds=1)
    engine.commit(held.half_offset)
    (pulled,) = engine.pull("orders")
    assert (pulled.body, pulled.topic, pulled.queue_offset) == (b"paid", "orders", 0)
    assert pulled.stored_at_ms == engine.clock.now_ms()
    assert pulled.prepared_offset == held.log_offsets[0]
    assert b"KEYS\x01k\x02TAGS\x01t\x02" in pulled.properties


def test_a_rolled_back_message_is_never_visible() -> None:
    engine = Engine()
    engine.prepare("t")
    engine.rollback(0)
    assert engine.pull("orders") == []
    assert engine.state(0) is State.ROLLED_BACK


def test_acknowledged_commands_survive_a_power_cut() -> None:
    engine = Engine()
    engine.prepare("t", message(b"a"), message(b"b", topic="stock"))
    engine.commit(0)
    engine.prepare("u", message(b"c"))
    engine.append(message(b"d"))
    for again in (engine.crash(), engine.crash(everything_survives), engine.restart()):
        assert bodies(again) == [b"a", b"d"]
        assert bodies(again, "stock") == [b"b"]
        assert again.state(2) is State.PREPARED
        again.commit(2)
        assert bodies(again) == [b"a", b"d", b"c"]


def test_a_batch_of_commands_shares_one_flush() -> None:
    disk = FaultyDisk()
    engine = Engine(disk)
    engine.append(message())
    before = len(disk.journal)
    prepares = [
        Prepare(group="g", transaction_id=f"t{n}", messages=(message(),)) for n in range(10)
    ]
    decisions = engine.submit_all(prepares)
    assert [d.refused for d in decisions] == [None] * 10
    assert sum(isinstance(done, Flush) for done in disk.journal[before:]) == 1
    assert len(engine.undecided()) == 10


def test_submit_returns_a_refusal_and_the_calls_raise_it() -> None:
    engine = Engine()
    engine.prepare("t")
    engine.commit(0)
    ending = End(half_offset=0, resolution=Resolution.ROLLBACK, by="me")
    refused = engine.submit(ending).refused
    assert refused is not None
    assert refused.code == "already_committed"
    with pytest.raises(RequestRefused, match="already_committed"):
        engine.rollback(0)


def test_a_message_that_breaks_a_limit_is_refused_before_anything_is_written() -> None:
    engine = Engine()
    with pytest.raises(RequestRefused, match="topic_illegal"):
        engine.prepare("t", message(topic="not legal"))
    assert engine.store.log.end == 0
    assert engine.core.table.end == 0


def test_delayed_and_scheduled_messages_are_released_when_due() -> None:
    engine = Engine()
    engine.append(message(b"scheduled", deliver_at_ms=engine.clock.now_ms() + 2_000))
    engine.prepare("t", message(b"delayed", deliver_after_ms=1_000))
    engine.commit(1)
    engine = engine.crash()
    engine.clock.advance(ms=1_000)
    assert engine.release_due() == [1]
    engine.clock.advance(ms=1_000)
    assert engine.release_due() == [0]
    assert engine.release_due() == []
    assert bodies(engine) == [b"delayed", b"scheduled"]


def test_pull_starts_at_an_offset_and_goes_on_to_the_end() -> None:
    engine = Engine()
    engine.submit_all([Prepare(group="g", transaction_id="t", messages=(message(),) * 4_000)])
    engine.commit(0)
    assert len(engine.pull("orders")) == 4_000
    assert [m.queue_offset for m in engine.pull("orders", offset=3_998)] == [3_998, 3_999]
    assert engine.pull("nothing") == []


def test_retention_deletes_the_past_and_carries_what_is_undecided() -> None:
    config = StoreConfig(segment_bytes_max=4_096, retention_ms=10 * HOUR_MS, copy_after_ms=HOUR_MS)
    engine = Engine(config=config)
    engine.prepare("open", message(b"kept"))
    for _ in range(6):
        engine.append(message(bytes(1_000)))
    engine.clock.advance(ms=11 * HOUR_MS)
    engine.append(message(bytes(3_000)))

    removed = engine.retain()

    assert removed.carried == 1
    assert removed.segments == 1
    engine = engine.crash()
    engine.commit(0)
    assert bodies(engine)[-1] == b"kept"


def test_a_checkpoint_is_taken_when_it_is_due() -> None:
    engine = Engine(config=StoreConfig(checkpoint_bytes=4_096))
    for _ in range(10):
        engine.append(message(bytes(1_000)))
    replayed = engine.crash().found
    assert replayed.replayed_from > 0
    engine.checkpoint()
    assert engine.crash().found.frames == 0


def test_after_a_failed_flush_nothing_is_served_until_a_restart() -> None:
    disk = FaultyDisk()
    engine = Engine(disk)
    engine.prepare("t", message(b"a"))
    disk.fail_after(DiskCall.FLUSH, 0, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        engine.commit(0)
    with pytest.raises(Unavailable, match="store_failed"):
        engine.commit(0)
    again = engine.crash()
    assert again.state(0) is State.PREPARED
    again.commit(0)
    assert bodies(again) == [b"a"]


def test_it_runs_on_a_real_directory_and_keeps_its_settings(tmp_path: Path) -> None:
    clock, policy = ManualClock(), CheckPolicy(checks_max=1)
    engine = Engine(OsDisk(tmp_path / "store"), clock=clock, policy=policy)
    engine.prepare("t")
    engine = engine.restart()
    assert engine.clock is clock
    assert engine.policy is policy
    assert engine.state(0) is State.PREPARED
    with pytest.raises(TypeError, match="FaultyDisk"):
        engine.crash()
    engine.close()
