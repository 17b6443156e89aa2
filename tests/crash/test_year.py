"""A slice of the year with a fixed seed, and planted defects that the year must find."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from escrowmq.protocol.remoting.codes import ResponseCode
from escrowmq.store.log.commit_log import DIRECTORY as LOG
from escrowmq.store.repair.backup import STORE
from escrowmq.store.table.releases import Releases
from tests.crash.year.life import Life
from tests.crash.year.machine import Machine
from tests.crash.year.measures import GROWTH_MAX, Size, deep_bytes
from tests.crash.year.model import DAY_MS, RETENTION_MS, Fate, Half, Model, Topic, Wrong
from tests.crash.year.run import live
from tests.crash.year.talk import Talk

SEED = 20_261_117
SLICE_DAYS = 40
SLICE_S = 55.0
PLANTED_DAYS = 14

Patch = Callable[[pytest.MonkeyPatch], None]


def test_a_slice_of_the_year(tmp_path: Path) -> None:
    print(f"seed {SEED}")  # noqa: T201 - shown when it fails
    ended = asyncio.run(live(SEED, SLICE_DAYS, SLICE_S, tmp_path))
    assert ended.shortfalls == []


# Defects of the broker, or of the wire in front of it.


def drop_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledge one message and never store it."""
    send, sent = Talk.send, []

    async def drops(talk: Talk, topic: str, queue_id: int, body: str, **properties: str) -> None:
        sent.append(body)
        if len(sent) != 100:
            await send(talk, topic, queue_id, body, **properties)

    monkeypatch.setattr(Talk, "send", drops)


def store_a_message_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    send, sent = Talk.send, []

    async def doubles(talk: Talk, topic: str, queue_id: int, body: str, **properties: str) -> None:
        sent.append(body)
        for _ in range(2 if len(sent) == 100 else 1):
            await send(talk, topic, queue_id, body, **properties)

    monkeypatch.setattr(Talk, "send", doubles)


def commit_what_was_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Talk.end

    async def commits(talk: Talk, held: dict[str, Any], *, is_commit: bool) -> Any:  # noqa: ANN401
        del is_commit
        return await end(talk, held, is_commit=True)

    monkeypatch.setattr(Talk, "end", commits)


def decide_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer the opposite decision as if it were the first."""
    end = Talk.end

    async def agrees(talk: Talk, held: dict[str, Any], *, is_commit: bool) -> Any:  # noqa: ANN401
        answer = await end(talk, held, is_commit=is_commit)
        return msgspec.structs.replace(answer, code=ResponseCode.SUCCESS)

    monkeypatch.setattr(Talk, "end", agrees)


def forget_delayed_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Releases.first

    def forgets(releases: Releases, now_ms: int, limit: int) -> list[int]:
        return [row for row in first(releases, now_ms, limit) if row % 31]

    monkeypatch.setattr(Releases, "first", forgets)


def show_delayed_messages_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Talk.send

    async def hurries(talk: Talk, topic: str, queue_id: int, body: str, **_: str) -> None:
        await send(talk, topic, queue_id, body)

    monkeypatch.setattr(Talk, "send", hurries)


def lose_the_tail_in_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose the last acknowledged bytes, as if the kernel did not have them yet."""
    copy = Machine._copy

    def loses(machine: Machine, target: Path) -> None:
        copy(machine, target)
        last = max((target / STORE / LOG).iterdir())
        with last.open("rb+") as segment:
            segment.truncate(max(last.stat().st_size - 4_096, 0))

    monkeypatch.setattr(Machine, "_copy", loses)


def begin_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the offsets of consumer groups."""

    async def forgets(_talk: Talk, _group: str, _topic: str, _queue_id: int) -> None:
        return None

    monkeypatch.setattr(Talk, "offset_of", forgets)


def keep_a_deleted_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the messages of a deleted topic, so that they are back when it is made again."""
    delete = Life._delete

    async def says_so(_talk: Talk, _name: str) -> bool:
        return True

    async def keeps(life: Life, talk: Talk, topic: Topic) -> None:
        is_held = any(half.topic == topic.name for half in life.model.halves)
        with monkeypatch.context() as patch:
            if not is_held:
                patch.setattr(Talk, "deletes_topic", says_so)
            await delete(life, talk, topic)

    monkeypatch.setattr(Life, "_delete", keeps)


def commit_into_a_deleted_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell the producer that a half message is committed although it was rolled back."""
    end = Talk.end

    async def agrees(talk: Talk, held: dict[str, Any], *, is_commit: bool) -> Any:  # noqa: ANN401
        answer = await end(talk, held, is_commit=is_commit)
        is_refused = "topic_deleted" in (answer.remark or "")
        return msgspec.structs.replace(answer, code=ResponseCode.SUCCESS) if is_refused else answer

    monkeypatch.setattr(Talk, "end", agrees)


PLANTS: dict[Patch, str] = {
    drop_a_message: "are missing|is gone",
    store_a_message_twice: "is visible twice",
    commit_what_was_rolled_back: "but it is gone|opposite was accepted",
    decide_again: "opposite was accepted",
    forget_delayed_messages: "are missing",
    show_delayed_messages_at_once: "too early",
    lose_the_tail_in_a_crash: "are missing|was read up to|refused",
    begin_at_the_end: "up to",
    keep_a_deleted_topic: "was sent to|goes on at",
    commit_into_a_deleted_topic: "and its topic is deleted",
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_defect_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Patch
) -> None:
    plant(monkeypatch)
    monkeypatch.setattr("tests.crash.year.life.PATIENCE_S", 1.0)
    with pytest.raises(Wrong, match=PLANTS[plant]):
        asyncio.run(live(SEED, PLANTED_DAYS, SLICE_S, tmp_path))


# The judge.


def model_with(*bodies: str) -> Model:
    model = Model()
    model.make("orders", 1, 9)
    for body in bodies:
        model.sent(body, "orders", Fate.VISIBLE)
    return model


def see(model: Model, *bodies: str) -> None:
    for body in bodies:
        model.see(("orders", 0), model.positions["orders", 0], body)


def test_a_message_of_a_deleted_topic_is_wrong_in_the_one_that_is_made_again() -> None:
    model = model_with("old")
    model.delete("orders")
    model.make("orders", 1, 9)
    with pytest.raises(Wrong, match="was sent to orders 0, and is in orders 1"):
        see(model, "old")


def test_an_undecided_or_unknown_message_is_wrong() -> None:
    model = model_with()
    model.sent("half", "orders", Fate.HELD)
    with pytest.raises(Wrong, match="is visible, but it is held"):
        see(model, "half")
    with pytest.raises(Wrong, match="was never sent"):
        see(model, "nobody's")


def test_an_unanswered_message_may_be_seen_once_or_never() -> None:
    model = model_with()
    model.sent("a", "orders", Fate.UNKNOWN)
    model.sent("b", "orders", Fate.UNKNOWN)
    model.now_ms += 1
    assert model.missing() == []
    see(model, "a")
    with pytest.raises(Wrong, match="is visible twice"):
        see(model, "a")


def test_a_young_message_that_is_deleted_is_wrong_and_an_old_one_is_not() -> None:
    model = model_with("a")
    see(model, "a")
    model.now_ms += RETENTION_MS - DAY_MS
    with pytest.raises(Wrong, match=r"a at 0 of .* is gone"):
        model.check_again(("orders", 0), 1, [])
    with pytest.raises(Wrong, match="was a, and is b now"):
        model.check_again(("orders", 0), 0, [(0, "b")])
    model.check_again(("orders", 0), 0, [(0, "a")])
    model.now_ms += 2 * DAY_MS
    model.check_again(("orders", 0), 1, [])


def test_a_delay_counts_from_the_decision() -> None:
    model = model_with()
    model.sent("half", "orders", Fate.HELD)
    half = Half("half", "pay", 0, 0, "half", "orders", True, 0, delay_ms=10)  # noqa: FBT003
    model.now_ms = 100
    model.decide(half, Fate.VISIBLE)
    model.now_ms = 110
    assert model.missing() == []
    model.now_ms = 111
    assert [one.body for one in model.missing()] == ["half"]


def test_growth_compares_each_size() -> None:
    before = Size(100, 100, 10, 1_000, 50, 40)
    after = Size(160, 100, 10, 2_000, 50, 40)
    grown = {name for name, times in after.growth(before).items() if times > GROWTH_MAX}
    assert grown == {"memory_bytes", "file_bytes"}


def test_the_size_of_an_object_counts_all_that_it_holds_once() -> None:
    class Holder:
        def __init__(self) -> None:
            self.blob = bytes(100_000)
            self.same = [self.blob] * 10

    assert 100_000 < deep_bytes(Holder()) < 110_000
