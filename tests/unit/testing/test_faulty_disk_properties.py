"""The disk in memory: properties of every sequence of operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.journal import (
    Create,
    PendingOperation,
    Remove,
    Rename,
    Truncate,
    Write,
)
from escrowmq.testing.survivors import everything_survives, nothing_survives

Step = tuple[str, str, int, bytes]

NAMES = st.sampled_from(["a", "b", "d/a", "d/b"])
STEPS = st.one_of(
    st.tuples(st.just("write"), NAMES, st.integers(0, 40), st.binary(max_size=20)),
    st.tuples(st.just("truncate"), NAMES, st.integers(0, 40), st.just(b"")),
    st.tuples(st.sampled_from(["flush", "remove", "flush_names"]), NAMES, st.just(0), st.just(b"")),
    st.tuples(st.just("rename"), NAMES, st.integers(0, 1), st.just(b"")),
)


def run(disk: FaultyDisk, steps: list[Step]) -> None:
    """Run the steps; a step on a missing file creates it."""
    disk.make_directory("d")
    for what, path, number, data in steps:
        directory = path.rpartition("/")[0]
        if what == "remove":
            disk.remove(path)
        elif what == "flush_names":
            disk.flush_directory(directory)
        else:
            file = disk.open(path, create=True)
            if what == "write":
                file.write_at(number, data)
            elif what == "truncate":
                file.truncate(number)
            elif what == "flush":
                file.flush()
            else:
                disk.rename(path, f"{directory}/{'ab'[number]}".lstrip("/"))


def flush_everything(disk: FaultyDisk) -> None:
    """Flush everything; only operations on files without a name stay pending."""
    for path in disk.snapshot():
        disk.open(path).flush()
    for directory in ("", "d"):
        disk.flush_directory(directory)


@settings(deadline=None)  # A slow machine is not a failure.
@given(st.lists(STEPS, max_size=25))
def test_with_everything_flushed_a_power_cut_changes_nothing(steps: list[Step]) -> None:
    disk = FaultyDisk()
    run(disk, steps)
    visible = disk.snapshot()
    assert disk.crash(everything_survives).snapshot() == visible
    flush_everything(disk)
    assert disk.crash(nothing_survives).snapshot() == disk.snapshot() == visible


@settings(deadline=None)  # A slow machine is not a failure.
@given(st.lists(STEPS, max_size=15), st.lists(STEPS, max_size=8), st.sets(st.integers(0, 15)))
def test_files_left_alone_since_their_flush_survive_whatever_else_does(
    before: list[Step], since: list[Step], kept: set[int]
) -> None:
    disk = FaultyDisk()
    run(disk, before)
    flush_everything(disk)
    durable = disk.snapshot()
    count = len(disk.journal)
    run(disk, since)

    def chosen(pending: Sequence[PendingOperation]) -> Iterable[PendingOperation]:
        return [item for index, item in enumerate(pending) if index in kept]

    touched: set[str] = set()
    for operation in disk.journal[count:]:
        if isinstance(operation, Write | Truncate | Create | Rename | Remove):
            touched |= {operation.path, getattr(operation, "new_path", "")}
    left = disk.crash(chosen).snapshot()
    alone = durable.keys() - touched
    assert {path: left[path] for path in alone} == {path: durable[path] for path in alone}
