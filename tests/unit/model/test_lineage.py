"""Two histories of one store differ in their epochs."""

from __future__ import annotations

import pytest

from escrowmq.model.errors import ProtocolViolation
from escrowmq.model.lineage import (
    EPOCHS_MAX,
    Epoch,
    Lineage,
    Sight,
    decode_lineage,
    new_lineage,
    repaired,
)


def lineage(*starts: tuple[str, int]) -> Lineage:
    """Epochs at these log offsets; the half offset is a tenth of the log offset."""
    made = new_lineage("store")
    for name, log_offset in starts:
        made = made.with_epoch(Epoch(name, log_offset, log_offset // 10, log_offset + 1))
    return made


def sight(log_end: int, *starts: tuple[str, int]) -> Sight:
    return Sight(lineage(*starts), log_end, log_end // 10)


def forked_at(mine: Sight, theirs: Sight) -> int | None:
    """Where the two differ; both sides must agree."""
    fork, back = mine.fork(theirs), theirs.fork(mine)
    at = None if fork is None else fork.log_offset
    assert at == (None if back is None else back.log_offset)
    if fork is not None:
        assert fork.half_offset == fork.log_offset // 10
    return at


A, B, C, D = ("a", 0), ("b", 100), ("c", 200), ("d", 150)


@pytest.mark.parametrize(
    ("mine", "theirs", "fork"),
    [
        # The same history at two times, with and without a restart between them.
        (sight(180, A, B), sight(120, A, B), None),
        (sight(300, A, B, C), sight(120, A, B), None),
        (sight(300, A, B, C), sight(200, A, B), None),
        # Restored from a backup taken at 150.
        (sight(160, A, B, D), sight(180, A, B), 150),
        (sight(160, A, B, D), sight(300, A, B, C), 150),
        # The other one saw nothing beyond the backup.
        (sight(160, A, B, D), sight(150, A, B), None),
        # Two restores of the same backup.
        (sight(160, A, B, ("e", 150)), sight(170, A, B, ("f", 150)), 150),
        # Restored from two backups.
        (sight(160, A, B, ("e", 140)), sight(170, A, B, ("f", 150)), 140),
        # Before the first epoch.
        (sight(160, ("e", 140)), sight(170, ("f", 150)), 140),
    ],
)
def test_histories_fork_where_their_epochs_differ(
    mine: Sight, theirs: Sight, fork: int | None
) -> None:
    assert forked_at(mine, theirs) == fork


def test_a_position_is_part_of_the_history_that_it_was_seen_in() -> None:
    restored = lineage(A, B, D)
    assert restored.holds("b", 120)
    assert restored.holds("b", 150)
    assert not restored.holds("b", 151), "the other history wrote that"
    assert restored.holds("d", 10**9)
    assert not restored.holds("c", 210)


def test_a_repair_is_a_fork_for_ledgers_and_none_for_readers() -> None:
    before = sight(300, A, B)
    after = Sight(lineage(A, B, C).with_epoch(repaired(60, 6)), 310, 31)
    assert forked_at(after, before) == 60
    readers = Sight(after.lineage.without_repairs(), 310, 31)
    assert forked_at(readers, before) == 200
    assert forked_at(readers, sight(200, A, B)) is None


def test_an_epoch_is_taken_once_and_in_its_place() -> None:
    made = lineage(C, A, B, B)
    assert [epoch.id for epoch in made.epochs] == ["root", "a", "b", "c"]
    assert made.epoch == "c"
    assert made.first_epoch == Epoch("a", 0, 0, 1)


def test_a_long_lineage_drops_its_oldest_epochs() -> None:
    starts = [(f"e{number}", 10 * number) for number in range(3 * EPOCHS_MAX)]
    long, short = lineage(*starts), lineage(*starts[: 2 * EPOCHS_MAX + 1])
    assert len(long.epochs) == EPOCHS_MAX
    assert long.first_epoch is None
    mine = Sight(long, 10**6, 10**5)
    assert forked_at(mine, Sight(short, starts[2 * EPOCHS_MAX + 1][1], 0)) is None
    # The two share no epoch, so they can have nothing in common above the lower end.
    assert forked_at(mine, Sight(lineage(*starts[:5]), 50, 5)) == 50


def test_a_lineage_travels_as_text() -> None:
    made = lineage(A, B)
    assert decode_lineage(made.encode()) == made
    assert decode_lineage("") is None
    assert made.newest(1).epochs == made.epochs[-1:]
    with pytest.raises(ProtocolViolation, match="lineage_malformed"):
        decode_lineage("store/a:1:2")
