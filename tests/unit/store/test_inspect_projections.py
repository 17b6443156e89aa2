"""The projections are checked as well, although the log can rebuild them."""

from __future__ import annotations

import pytest

from escrowmq.store.checkpoint import checkpoint as checkpoints
from escrowmq.store.repair.inspect import check
from escrowmq.testing.faulty_disk import FaultyDisk
from tests.unit.store.damage import codes
from tests.unit.store.shop import Shop


def named_files(disk: FaultyDisk) -> dict[str, list[str]]:
    checkpoint = checkpoints.load(disk, checkpoints.PATH)
    assert checkpoint is not None
    return {
        "state_table_damaged": [f"statetable/{name}" for name in checkpoint.state_files()],
        "key_index_damaged": [f"keyindex/{name}" for name in checkpoint.key_runs],
        "consume_queue_damaged": [
            f"consumequeue/{named.id:08d}.{0:020d}" for named in checkpoint.queues
        ],
    }


@pytest.mark.parametrize("how", ["flipped", "missing", "cut", "emptied"])
@pytest.mark.parametrize(
    "code", ["state_table_damaged", "key_index_damaged", "consume_queue_damaged"]
)
def test_each_kind_of_projection_is_checked(disk: FaultyDisk, code: str, how: str) -> None:
    for path in named_files(disk)[code]:
        copy = FaultyDisk(disk.crash_image(lambda pending: pending))
        size = copy.open(path).size()
        if how == "flipped":
            copy.flip_bit(path, size - 40, 2)
        elif how == "missing":
            copy.remove(path)
        else:
            copy.open(path).truncate(size - 1 if how == "cut" else 0)
        report = check(copy)
        assert [(found.code, found.path) for found in report.findings] == [(code, path)]
        assert report.is_damaged


def test_a_key_run_of_a_newer_version_is_told(disk: FaultyDisk) -> None:
    import struct
    import zlib

    path = named_files(disk)["key_index_damaged"][0]
    file = disk.open(path)
    header = bytearray(file.read_at(0, 4096))
    header[8:12] = struct.pack("<I", 2)
    blocks = file.read_at(4096, file.size())
    header[-4:] = struct.pack("<I", zlib.crc32(header[:-4], zlib.crc32(blocks)))
    file.write_at(0, header)
    assert codes(check(disk)) == {"key_index_version_unknown"}


def test_a_damaged_checkpoint_is_told_and_the_one_before_it_used(disk: FaultyDisk) -> None:
    disk.flip_bit("checkpoint", 100, 1)
    report = check(disk)
    assert [found.is_whole for found in report.checkpoints] == [False, True]
    assert codes(report) == {"checkpoint_damaged"}


def test_without_any_checkpoint_a_log_that_starts_at_0_is_all_that_is_needed(
    disk: FaultyDisk,
) -> None:
    disk.remove("checkpoint")
    disk.remove("checkpoint.old")
    report = check(disk)
    assert not report.is_damaged
    assert report.checkpoints == []


def test_without_any_checkpoint_a_log_that_lost_its_prefix_is_useless() -> None:
    shop = Shop(seed=8).run(300, retention=0.05)
    assert shop.store.log.start > 0
    disk = FaultyDisk(shop.image())
    disk.remove("checkpoint")
    disk.remove("checkpoint.old")
    report = check(disk)
    assert codes(report) == {"checkpoint_missing"}
    assert report.ranges == []


class BusyDisk(FaultyDisk):
    """A broker that takes its next checkpoint while the check reads a projection."""

    shop: Shop
    checkpoints_left = 0

    def open(self, path: str, *, create: bool = False):  # type: ignore[no-untyped-def] # noqa: ANN201
        if path.startswith("statetable/") and self.checkpoints_left and not create:
            self.checkpoints_left -= 1
            self.shop.append()
            self.shop.store.checkpoint()
        return super().open(path, create=create)


@pytest.mark.parametrize("times", [1, 10])
def test_a_checkpoint_taken_meanwhile_is_read_again(times: int) -> None:
    disk = BusyDisk()
    shop = Shop(disk=disk)
    disk.shop = shop
    for _ in range(3):
        shop.prepare()
    shop.store.sync()
    shop.store.checkpoint()
    disk.checkpoints_left = times
    report = check(disk)
    assert not report.damage
    if times == 1:
        assert not report.is_damaged
