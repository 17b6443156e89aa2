"""The end of the log after a crash: a torn tail is cut, damage is refused by name."""

from __future__ import annotations

import errno
import logging

import pytest

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.store.log.commit_log import segment_path
from escrowmq.store.log.frames import HEAD_BYTES
from escrowmq.store.recovery import recovery
from escrowmq.testing.crash_explorer import CrashExplorer
from escrowmq.testing.faulty_disk import DiskCall, FaultyDisk
from escrowmq.testing.survivors import (
    TornLast,
    everything_survives,
    interesting_survivors,
    nothing_survives,
)
from escrowmq.transaction.commands import Append
from tests.unit.logged import event_of
from tests.unit.store.helpers import Driver, faulty, message

FIRST = segment_path(0)


def written(driver: Driver, body: str) -> None:
    """Write a message to the kernel without a flush."""
    driver.store.execute(Append(messages=(message(body),)), driver.clock.now_ms())
    driver.store.write()


def three_in_one_segment() -> tuple[Driver, list[int]]:
    """Three acknowledged messages, and where each frame starts; the last offset is the end."""
    driver = Driver()
    offsets = []
    for body in ("one", "two", "three"):
        offsets.append(driver.store.log.end)
        driver.append(message(body))
    return driver, [*offsets, driver.store.log.end]


# Torn


def test_a_frame_torn_at_any_byte_is_cut_and_the_rest_is_there() -> None:
    driver, offsets = three_in_one_segment()
    written(driver, "unacknowledged")
    size = driver.store.log.end - offsets[-1]
    frame = driver.store.log.read(offsets[-1], size)
    # Trailing zeros read as zeros even if they were never written.
    for kept in range(len(frame.rstrip(b"\0"))):
        for sized in (False, True):
            after = driver.crashed(TornLast(kept, sized=sized))
            assert after.bodies() == ["one", "two", "three"]
            assert after.store.log.end == offsets[-1]
            assert after.found.cut_bytes == (size if sized else kept)


def test_a_cut_is_logged_with_how_much(caplog: pytest.LogCaptureFixture) -> None:
    driver, offsets = three_in_one_segment()
    written(driver, "unacknowledged")
    caplog.set_level(logging.INFO, "escrowmq.store.recovery.recovery")
    driver.crashed(TornLast(77))
    facts = {event_of(record): vars(record) for record in caplog.records}
    assert facts["torn_tail_cut"]["cut_bytes"] == 77
    assert facts["torn_tail_cut"]["log_offset"] == offsets[-1]
    assert facts["store_recovered"]["frames"] == 3


def test_a_whole_frame_that_was_never_acknowledged_may_stay() -> None:
    driver, _ = three_in_one_segment()
    written(driver, "fourth")
    after = driver.crashed(everything_survives)
    assert after.bodies() == ["one", "two", "three", "fourth"]
    assert after.found.cut_bytes == 0


def test_an_intact_frame_behind_a_torn_one_is_cut_with_it() -> None:
    """Only frames that follow the last valid frame without a gap were promised."""
    driver, offsets = three_in_one_segment()
    fourth_at = driver.store.log.end
    written(driver, "fourth")
    written(driver, "fifth")
    disk = faulty(driver)
    disk.flip_bit(FIRST, fourth_at + 50, 0)
    after = driver.opened_again()
    assert after.bodies() == ["one", "two", "three"]
    assert after.store.log.end == offsets[-1]


def a_gap_is_filled() -> list[str]:
    """Tear a frame but not the one behind it, then write one as long as the torn one."""
    driver, offsets = three_in_one_segment()
    # Without it, recovery would rewrite the three to a new segment and leave the rest behind.
    driver.store.checkpoint()
    written(driver, "fourth")
    written(driver, "fifth")
    faulty(driver).flip_bit(FIRST, offsets[-1] + 50, 0)
    after = driver.opened_again()
    after.append(message("4th!!!"))
    return after.crashed().bodies()


def test_a_cut_tail_does_not_return_when_its_gap_is_filled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert a_gap_is_filled() == ["one", "two", "three", "4th!!!"]
    # Without the cut, a message that was never acknowledged appears.
    monkeypatch.setattr(recovery, "cut_tail", lambda *_: 0)
    assert a_gap_is_filled() == ["one", "two", "three", "4th!!!", "fifth"]


def test_whole_segments_of_a_torn_tail_are_removed() -> None:
    driver = Driver()
    driver.append(message("kept"))
    torn_at = driver.store.log.end
    for number in range(8):
        written(driver, f"{number}" * 1500)
    assert len(driver.store.log.segments) == 4
    faulty(driver).flip_bit(FIRST, torn_at + 50, 0)
    after = driver.opened_again()
    assert after.bodies() == ["kept"]
    assert len(after.store.log.segments) == 1
    after.append(message("next"))
    assert after.opened_again().bodies() == ["kept", "next"]


def test_a_tail_whose_middle_segment_never_reached_the_disk_is_cut_at_the_hole() -> None:
    driver = Driver()
    driver.append(message("kept"))
    written(driver, "a" * 3000)
    written(driver, "b" * 3000)
    written(driver, "c" * 3000)
    hole = driver.store.log.segments[1].start
    faulty(driver).open(segment_path(hole)).truncate(0)
    after = driver.opened_again()
    assert after.bodies() == ["kept", "a" * 3000]
    assert after.store.log.end == hole


def test_an_empty_segment_at_the_end_is_written_to_next() -> None:
    driver, offsets = three_in_one_segment()
    driver.store.checkpoint()
    faulty(driver).open(segment_path(offsets[-1]), create=True)
    after = driver.opened_again()
    after.append(message("four"))
    assert after.opened_again().bodies() == ["one", "two", "three", "four"]


# Damaged


@pytest.mark.parametrize("frame", [0, 1])
def test_a_flipped_bit_in_what_a_later_frame_knows_to_be_flushed_is_refused(frame: int) -> None:
    driver, offsets = three_in_one_segment()
    sound = faulty(driver).snapshot()
    for place in range(offsets[frame], offsets[frame + 1], 7):
        disk = FaultyDisk.load(sound, ["consumequeue", "statetable", "keyindex"])
        disk.flip_bit(FIRST, place, place % 8)
        if place - offsets[frame] in (4, 5):
            continue  # Another test covers the version.
        with pytest.raises(StoreCorrupt) as refused:
            Driver(disk)
        assert refused.value.code == "log_damaged"
        assert refused.value.fields["segment"] == FIRST
        assert refused.value.fields["log_offset"] == offsets[frame]
        assert refused.value.fields["flushed"] in offsets[frame + 1 :]


def test_damage_is_left_as_it_is() -> None:
    driver, offsets = three_in_one_segment()
    disk = faulty(driver)
    disk.flip_bit(FIRST, offsets[1] + 60, 0)
    before = disk.snapshot()[FIRST]
    for _ in range(2):
        with pytest.raises(StoreCorrupt):
            driver.opened_again()
    assert disk.snapshot()[FIRST] == before


def test_damage_is_seen_through_frames_in_later_segments() -> None:
    driver = Driver()
    driver.append(message("a" * 3000))
    driver.append(message("b" * 3000))
    driver.append(message("c" * 3000))
    second = driver.store.log.segments[1].start
    faulty(driver).flip_bit(segment_path(second), 0, 0)
    with pytest.raises(StoreCorrupt) as refused:
        driver.opened_again()
    assert refused.value.fields["segment"] == segment_path(second)
    assert refused.value.fields["log_offset"] == second


def test_damage_below_a_checkpoint_is_refused_though_no_later_frame_knows_of_it() -> None:
    driver, offsets = three_in_one_segment()
    driver.store.checkpoint()
    faulty(driver).flip_bit(FIRST, offsets[2] + 60, 0)
    # Nothing is replayed, so the damage is seen when the message is read.
    after = driver.opened_again()
    with pytest.raises(StoreCorrupt) as refused:
        after.bodies()
    assert refused.value.code == "message_damaged"
    assert refused.value.fields["log_offset"] == offsets[2] + HEAD_BYTES
    # Without the projections everything is replayed, and the checkpoint knows what was flushed.
    for name in driver.disk.list("keyindex"):
        driver.disk.remove(f"keyindex/{name}")
    with pytest.raises(StoreCorrupt) as refused:
        driver.opened_again()
    assert refused.value.code == "log_damaged"
    assert refused.value.fields["log_offset"] == offsets[2]


def test_damage_in_the_last_frame_of_all_cannot_be_told_from_a_tear() -> None:
    """No intact frame and no checkpoint states that it was flushed."""
    driver, offsets = three_in_one_segment()
    faulty(driver).flip_bit(FIRST, offsets[2] + 60, 0)
    after = driver.opened_again()
    assert after.bodies() == ["one", "two"]
    assert after.found.cut_bytes == offsets[3] - offsets[2]


def test_a_missing_segment_is_refused_by_name() -> None:
    for has_checkpoint in (False, True):
        driver = Driver()
        for body in "abc":
            driver.append(message(body * 3000))
        if has_checkpoint:
            driver.store.checkpoint()
        second = driver.store.log.segments[1].start
        driver.disk.remove(segment_path(second))
        with pytest.raises(StoreCorrupt) as refused:
            driver.opened_again()
        assert refused.value.code == ("log_segment_missing" if has_checkpoint else "log_damaged")
        assert refused.value.fields["segment"] == segment_path(second)
        assert refused.value.fields["log_offset"] == second


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_missing_first_segment_is_refused_by_name(*, has_checkpoint: bool) -> None:
    driver = Driver()
    for body in "abc":
        driver.append(message(body * 3000))
    if has_checkpoint:
        driver.store.checkpoint()
    driver.disk.remove(FIRST)
    with pytest.raises(StoreCorrupt) as refused:
        driver.opened_again()
    assert refused.value.code == "log_segment_missing"
    assert refused.value.fields == {"segment": FIRST, "log_offset": 0}


def test_a_log_shorter_than_its_checkpoint_is_refused() -> None:
    driver, offsets = three_in_one_segment()
    driver.store.checkpoint()
    driver.disk.open(FIRST).truncate(offsets[2])
    with pytest.raises(StoreCorrupt) as refused:
        driver.opened_again()
    assert refused.value.code == "log_too_short"
    assert refused.value.fields == {
        "segment": FIRST,
        "log_offset": offsets[2],
        "expected": offsets[3],
    }
    driver.disk.remove(FIRST)
    with pytest.raises(StoreCorrupt) as refused:
        driver.opened_again()
    assert refused.value.fields == {"segment": FIRST, "log_offset": 0, "expected": offsets[3]}


# Unknown


def test_a_frame_of_an_unknown_version_is_refused_and_kept() -> None:
    driver, offsets = three_in_one_segment()
    disk = faulty(driver)
    disk.flip_bit(FIRST, offsets[2] + 4, 1)
    with pytest.raises(StoreUnusable) as refused:
        driver.opened_again()
    assert refused.value.code == "frame_version_unknown"
    assert refused.value.fields == {
        "version": 3,
        "known": 1,
        "segment": FIRST,
        "log_offset": offsets[2],
    }
    assert len(disk.snapshot()[FIRST]) == offsets[3]


@pytest.mark.parametrize("name", ["notes.txt", "123", "0000000000000000000x", "backup.old"])
def test_a_foreign_file_in_the_log_is_refused_by_name(name: str) -> None:
    driver, _ = three_in_one_segment()
    driver.disk.open(f"commitlog/{name}", create=True)
    with pytest.raises(StoreUnusable) as refused:
        driver.opened_again()
    assert refused.value.code == "store_foreign"
    assert refused.value.fields == {"path": f"commitlog/{name}"}
    assert driver.disk.exists(f"commitlog/{name}")


def test_an_unfinished_rewrite_is_removed() -> None:
    driver, _ = three_in_one_segment()
    driver.disk.open(f"{FIRST}.tmp", create=True).write_at(0, b"half a tail")
    after = driver.opened_again()
    assert after.bodies() == ["one", "two", "three"]
    assert not after.disk.exists(f"{FIRST}.tmp")


# Rewritten


def test_after_a_failed_flush_what_recovery_reports_is_really_on_the_disk() -> None:
    """The kernel shows pages that it never wrote and never will, so recovery writes them again."""
    driver, _ = three_in_one_segment()
    driver.store.checkpoint()
    disk = faulty(driver)
    disk.fail_after(DiskCall.FLUSH, 0, errno.EIO, under="commitlog")
    written(driver, "lost page")
    with pytest.raises(OSError, match="Input/output"):
        driver.store.flush()
    assert "lost page" not in driver.crashed(nothing_survives).bodies()
    after = driver.opened_again()
    assert after.bodies() == ["one", "two", "three", "lost page"]
    assert after.crashed(nothing_survives).bodies() == ["one", "two", "three", "lost page"]


def test_a_rewritten_tail_may_span_segments() -> None:
    driver, _ = three_in_one_segment()
    disk = faulty(driver)
    disk.fail_after(DiskCall.FLUSH, 0, errno.EIO, under="commitlog", times=None)
    for body in "abcd":
        written(driver, body * 2500)
    with pytest.raises(OSError, match="Input/output"):
        driver.store.flush()
    end = driver.store.log.end
    disk._faults.clear()
    after = driver.opened_again()
    assert after.store.log.end == end
    assert [body[:1] for body in after.crashed(nothing_survives).bodies()] == list("ottabcd")
    after.append(message("next"))
    assert after.crashed(nothing_survives).bodies()[-1] == "next"


def test_a_segment_that_the_rewritten_one_before_covers_is_removed() -> None:
    """A crash came between the new tail's rename and the removal of what it replaces."""
    driver = Driver()
    driver.append(message("one"))
    driver.append(message("two"))
    stray = segment_path(driver.store.log.end - 10)
    driver.disk.open(stray, create=True).write_at(0, b"older")
    after = driver.opened_again()
    assert after.bodies() == ["one", "two"]
    assert not after.disk.exists(stray)


@pytest.mark.parametrize("torn", [False, True])
def test_a_crash_at_any_moment_of_a_recovery_loses_nothing(*, torn: bool) -> None:
    driver = Driver()
    driver.append(message("one"))
    driver.store.checkpoint()
    driver.append(message("two"))
    driver.append(message("a" * 3000))
    driver.append(message("b" * 3000))
    promised = ["one", "two", "a" * 3000, "b" * 3000]
    written(driver, "c" * 3000)
    written(driver, "d" * 3000)
    disk = faulty(driver)
    image = disk.crash_image(TornLast(2000) if torn else everything_survives)
    recovering = FaultyDisk(image)
    expected = Driver(recovering).bodies()
    assert expected[:4] == promised
    judged = set()
    for point in CrashExplorer(recovering.journal, image):
        for survivors in interesting_survivors(point.pending, singled_out_max=4):
            left = point.crash_image(survivors)
            if left in judged:
                continue
            judged.add(left)
            after = Driver(FaultyDisk(left))
            assert after.bodies()[:4] == promised
            assert after.bodies() == expected[: len(after.bodies())]
            assert after.opened_again().picture() == after.picture()
    assert len(judged) > 20
