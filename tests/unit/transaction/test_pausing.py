"""Pausing and resuming a consumer group is a record, like any other change of a group."""

from __future__ import annotations

import msgspec

from escrowmq.model.catalog import Group, Pause
from escrowmq.testing import MemoryEngine
from escrowmq.transaction.commands import Cataloged, Decision, MarkCatalog, PutGroup, RemoveGroup
from escrowmq.transaction.pause_command import PauseGroup
from escrowmq.transaction.records import GroupPut

REASON_CHARS_TOO_MANY = 256


def engine_with_group() -> MemoryEngine:
    engine = MemoryEngine()
    engine.submit(MarkCatalog(mark="kept"))
    engine.submit(PutGroup(group=Group(name="readers", retry_max=3), is_only_made=True))
    return engine


def pause(engine: MemoryEngine, *, is_paused: bool = True, by: str = "ann") -> Decision:
    command = PauseGroup(name="readers", is_paused=is_paused, by=by, reason="upgrade")
    return engine.submit(command)


def paused(engine: MemoryEngine) -> Pause | None:
    group = engine.core.catalog.group("readers")
    assert group is not None
    return group.pause


def test_a_pause_survives_a_restart_and_changes_nothing_else_of_the_group() -> None:
    engine = engine_with_group()
    pause(engine)
    kept = engine.restart().core.catalog.groups["readers"]
    assert kept.group.pause is not None
    assert (kept.group.pause.by, kept.group.pause.reason) == ("ann", "upgrade")
    assert kept.group.retry_max == 3
    # An operator has changed the group, so it does not expire when it is unused.
    assert not kept.is_made_by_use


def test_the_first_pause_stands_and_a_second_one_writes_nothing() -> None:
    engine = engine_with_group()
    pause(engine)
    again = pause(engine, by="bob")
    assert again.reply == Cataloged(is_changed=False)
    assert again.records == ()
    first = paused(engine)
    assert first is not None
    assert first.by == "ann"


def test_resuming_takes_the_pause_away_once() -> None:
    engine = engine_with_group()
    assert pause(engine, is_paused=False).reply == Cataloged(is_changed=False)
    pause(engine)
    assert pause(engine, is_paused=False).reply == Cataloged(is_changed=True)
    assert paused(engine.restart()) is None


def test_a_tool_that_writes_the_group_anew_does_not_resume_it() -> None:
    engine = engine_with_group()
    pause(engine)
    engine.submit(PutGroup(group=Group(name="readers", retry_max=9)))
    group = engine.core.catalog.group("readers")
    assert group is not None
    assert group.retry_max == 9
    assert group.pause is not None
    # A tool cannot set a pause in this way either.
    engine.submit(PutGroup(group=Group(name="other", pause=group.pause)))
    other = engine.core.catalog.group("other")
    assert other is not None
    assert other.pause is None


def test_a_group_that_does_not_exist_cannot_be_paused() -> None:
    engine = engine_with_group()
    engine.submit(RemoveGroup(name="readers", by="ann"))
    refused = pause(engine).refused
    assert refused is not None
    assert refused.code == "group_unknown"


def test_a_reason_that_is_too_long_is_refused() -> None:
    engine = engine_with_group()
    reason = "x" * REASON_CHARS_TOO_MANY
    command = PauseGroup(name="readers", is_paused=True, by="ann", reason=reason)
    refused = engine.submit(command).refused
    assert refused is not None
    assert refused.code == "bad_group"


def test_a_group_of_an_older_release_has_no_pause_and_a_newer_field_is_passed_over() -> None:
    old = msgspec.to_builtins(GroupPut(Group(name="readers")))
    del old[1]["pause"]
    assert msgspec.convert(old, GroupPut).group.pause is None
    old[1]["later"] = 1
    assert msgspec.convert(old, GroupPut).group.name == "readers"
