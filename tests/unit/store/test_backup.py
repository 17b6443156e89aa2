"""A copy of a store, taken at any moment, is that store at that moment."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from escrowmq.model.catalog import Topic
from escrowmq.model.errors import StoreCorrupt, StoreUnusable, Unavailable
from escrowmq.model.resolution import Resolution
from escrowmq.store.checkpoint import checkpoint
from escrowmq.store.disk.disk import File, OsDisk
from escrowmq.store.log.commit_log import DIRECTORY, segment_path
from escrowmq.store.meta.meta import Meta
from escrowmq.store.recovery.recovery import open_store
from escrowmq.store.repair import backup, inspect
from escrowmq.store.repair.backup import MANIFEST, Manifest, Room
from escrowmq.store.retention.retention import retain
from escrowmq.transaction.memory.catalog import Catalog
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import TopicPut
from tests.unit.store.shop import CONFIG, HOST, Shop

NOW_MS = 1_700_000_000_000


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(disk=OsDisk(tmp_path / "data/store"))  # type: ignore[arg-type] # a real disk
    yield shop
    shop.store.open_files.close()
    shop.store.log.close()


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[Meta]:
    (tmp_path / "data").mkdir(exist_ok=True)
    with closing(Meta(tmp_path / "data/meta.db")) as meta:
        catalog = Catalog()
        catalog.apply(TopicPut(Topic(name="orders"), 1), 100)
        meta.follow(catalog)
        yield meta


def opener(meta: Meta) -> Callable[[], File]:
    def opened_copy() -> File:
        copy = meta.copy()
        return OsDisk(copy.parent, read_only=True).open(copy.name)

    return opened_copy


def take(tmp_path: Path, meta: Meta, name: str = "backup") -> Manifest:
    return backup.take(
        OsDisk(tmp_path / "data/store", read_only=True),
        OsDisk(tmp_path / name),
        opener(meta),
        now_ms=NOW_MS,
        release="1",
    )


def restored(tmp_path: Path, name: str = "backup") -> Path:
    place = tmp_path / f"{name}-restored"
    backup.restore(OsDisk(tmp_path / name, read_only=True), OsDisk(place))
    return place


def busy_day(shop: Shop, orders: int) -> None:
    for number in range(orders):
        shop.now_ms += 50
        head = shop.prepare(1 + number % 3, requests=1 + number % 2)
        if number % 4:
            shop.end(head, Resolution.COMMIT if number % 3 else Resolution.ROLLBACK)
        shop.append()
        shop.store.sync()
        if number % 9 == 5:
            shop.store.checkpoint()


def retain_old(shop: Shop) -> None:
    shop.store.sync()
    assert retain(shop.store, shop.now_ms).segments > 0


def truth(store: Any) -> Any:  # noqa: ANN401 - whatever can be compared
    rows = [
        (half.half_offset, half.state)
        for at in range(store.table.end)
        if (half := store.table.get(at)) is not None
    ]
    return rows, [(queue.start, queue.end) for queue in store.queues.values()]


def reopened(place: Path) -> Any:  # noqa: ANN401 - as above
    store, found = open_store(OsDisk(place / "store"), CONFIG, CheckPolicy(), HOST)
    told = truth(store)
    store.close()
    return told, found


def test_a_backup_opens_to_what_was_there(tmp_path: Path, shop: Shop, meta: Meta) -> None:
    busy_day(shop, 40)
    manifest = take(tmp_path, meta)
    assert len(shop.store.log.segments) > 2
    assert (manifest.log_start, manifest.log_end) == (0, shop.store.log.end)
    assert manifest.size == sum(
        path.stat().st_size
        for path in (tmp_path / "backup").rglob("*")
        if path.is_file() and path.name != MANIFEST
    )
    place = restored(tmp_path)
    assert not inspect.check(OsDisk(place / "store", read_only=True)).is_damaged
    told, found = reopened(place)
    assert told == truth(shop.store)
    assert found.rebuilt_because == backup.REBUILD
    with closing(Meta(place / "meta.db")) as tables:
        assert list(tables.stated_topics) == ["orders"]


def test_a_backup_after_retention_opens_too(tmp_path: Path, shop: Shop, meta: Meta) -> None:
    busy_day(shop, 60)
    shop.now_ms += CONFIG.retention_ms
    shop.append()
    retain_old(shop)
    shop.append()
    shop.store.sync()
    manifest = take(tmp_path, meta)
    assert manifest.log_start > 0
    told, _ = reopened(restored(tmp_path))
    assert told[1] == truth(shop.store)[1]


def test_a_store_without_anything_can_be_backed_up(tmp_path: Path, shop: Shop, meta: Meta) -> None:
    assert take(tmp_path, meta).log_end == 0
    assert reopened(restored(tmp_path))[0] == truth(shop.store)


def test_a_batch_in_flight_is_a_torn_tail(tmp_path: Path, shop: Shop, meta: Meta) -> None:
    busy_day(shop, 5)
    before = truth(shop.store)
    shop.append()
    shop.store.write()
    last = shop.store.log.segments[-1]
    with (tmp_path / "data/store" / segment_path(last.start)).open("r+b") as file:
        # The state that a reader may see during a write.
        file.truncate(last.size - 7)
    take(tmp_path, meta)
    told, found = reopened(restored(tmp_path))
    assert told == before
    assert found.cut_bytes > 0


def test_bytes_of_a_segment_that_the_next_one_took_over_are_left_out(
    tmp_path: Path, shop: Shop, meta: Meta
) -> None:
    busy_day(shop, 40)
    first = tmp_path / "data/store" / segment_path(0)
    first.write_bytes(first.read_bytes() + b"the tail was written again")
    take(tmp_path, meta)
    assert reopened(restored(tmp_path))[0] == truth(shop.store)


def test_a_log_from_its_beginning_needs_no_checkpoint(
    tmp_path: Path, shop: Shop, meta: Meta
) -> None:
    busy_day(shop, 40)
    for name in (checkpoint.PATH, checkpoint.PREVIOUS):
        (tmp_path / "data/store" / name).unlink()
    take(tmp_path, meta)
    assert reopened(restored(tmp_path))[0] == truth(shop.store)


# While retention runs.


def test_a_segment_that_retention_has_not_deleted_yet_is_left_out(
    tmp_path: Path, shop: Shop
) -> None:
    busy_day(shop, 60)
    oldest = tmp_path / "data/store" / segment_path(0)
    kept = oldest.read_bytes()
    shop.now_ms += CONFIG.retention_ms
    shop.append()
    retain_old(shop)
    oldest.write_bytes(kept)
    with closing(backup.pin(OsDisk(tmp_path / "data/store", read_only=True))) as pinned:
        assert pinned.log_start == shop.store.log.start > 0


class Moving:
    """A disk that runs a callback when the log is listed."""

    def __init__(self, disk: OsDisk, happens: Callable[[], None], times: int = 1) -> None:
        self._disk = disk
        self._happens = happens
        self._times = times

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a disk
        return getattr(self._disk, name)

    def list(self, path: str) -> list[str]:
        names = self._disk.list(path)
        if path == DIRECTORY and self._times:
            self._times -= 1
            self._happens()
        return names


def test_a_segment_that_goes_before_it_is_opened_makes_it_look_again(
    tmp_path: Path, shop: Shop
) -> None:
    busy_day(shop, 60)

    def delete() -> None:
        shop.now_ms += CONFIG.retention_ms
        shop.append()
        shop.store.sync()
        retain_old(shop)

    disk = Moving(OsDisk(tmp_path / "data/store", read_only=True), delete)
    with closing(backup.pin(disk)) as pinned:
        assert pinned.log_start == shop.store.log.start > 0


def test_a_checkpoint_that_counts_on_what_is_gone_is_not_taken(tmp_path: Path, shop: Shop) -> None:
    busy_day(shop, 40)
    store = tmp_path / "data/store"
    first = store / segment_path(0)
    first.unlink()
    with pytest.raises(Unavailable, match="backup_overtaken"):
        backup.pin(OsDisk(store, read_only=True))


def test_a_pinned_file_can_be_read_after_its_name_is_gone(tmp_path: Path, shop: Shop) -> None:
    busy_day(shop, 40)
    store = tmp_path / "data/store"
    with closing(backup.pin(OsDisk(store, read_only=True))) as pinned:
        kept = (store / segment_path(0)).read_bytes()
        (store / segment_path(0)).unlink()
        file, size = pinned.segments[0]
        assert file.read_at(0, size) == kept
        (store / segment_path(0)).write_bytes(kept)


def test_between_two_names_of_a_checkpoint_the_one_before_is_taken(
    tmp_path: Path, shop: Shop, meta: Meta
) -> None:
    busy_day(shop, 40)
    store = tmp_path / "data/store"
    (store / checkpoint.PATH).rename(store / checkpoint.PREVIOUS)
    take(tmp_path, meta)
    assert reopened(restored(tmp_path))[0] == truth(shop.store)


def test_files_are_given_back_when_opening_fails(tmp_path: Path, shop: Shop) -> None:
    busy_day(shop, 40)

    class Failing(OsDisk):
        def open(self, path: str, *, create: bool = False) -> Any:  # noqa: ANN401 - an OsFile
            if path.startswith(DIRECTORY):
                raise OSError(errno.EMFILE, "too many")
            return super().open(path, create=create)

    with pytest.raises(OSError, match="too many"):
        backup.pin(Failing(tmp_path / "data/store", read_only=True))


# Refusals.


def test_only_a_store_is_backed_up_and_only_into_an_empty_place(
    tmp_path: Path, shop: Shop, meta: Meta
) -> None:
    with pytest.raises(StoreUnusable, match="store_missing"):
        backup.pin(OsDisk(tmp_path / "none", read_only=True))
    take(tmp_path, meta)
    with pytest.raises(StoreUnusable, match="target_not_empty"):
        take(tmp_path, meta)
    with pytest.raises(StoreUnusable, match="target_not_empty"):
        backup.restore(OsDisk(tmp_path / "backup"), OsDisk(tmp_path / "data"))
    shop.append()


def test_a_backup_that_was_cut_short_is_not_restored(
    tmp_path: Path, shop: Shop, meta: Meta
) -> None:
    busy_day(shop, 5)
    take(tmp_path, meta)
    (tmp_path / "backup" / MANIFEST).unlink()
    with pytest.raises(StoreUnusable, match="backup_incomplete"):
        restored(tmp_path)


def test_damage_of_any_file_is_found(tmp_path: Path, shop: Shop, meta: Meta) -> None:
    busy_day(shop, 40)
    for file in take(tmp_path, meta).files:
        path = tmp_path / "backup" / file.path
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        for damaged in (bytes(flipped), whole[:-1], whole + b"x"):
            path.write_bytes(damaged)
            with pytest.raises(StoreCorrupt, match="backup_damaged"):
                backup.verify(OsDisk(tmp_path / "backup"))
        path.unlink()
        with pytest.raises(StoreCorrupt, match="it is missing"):
            backup.verify(OsDisk(tmp_path / "backup"))
        path.write_bytes(whole)
    assert backup.verify(OsDisk(tmp_path / "backup")).release == "1"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "backup_damaged"),
        ("[]", "backup_damaged"),
        ("{}", "backup_damaged"),
        ('{"version": 2}', "backup_version_unknown"),
        ('{"version": 1}', "backup_damaged"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_told(tmp_path: Path, text: str, code: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises((StoreCorrupt, StoreUnusable), match=code):
        backup.read_manifest(OsDisk(tmp_path))


@pytest.mark.parametrize("path", ["../meta.db", "/etc/passwd", "store/commitlog/1", "lock"])
def test_a_manifest_names_no_files_but_ours(tmp_path: Path, path: str) -> None:
    (tmp_path / "meta.db").write_bytes(b"x")
    digest = hashlib.sha256(b"x").hexdigest()
    manifest = Manifest(
        version=1,
        made_at_ms=0,
        release="1",
        log_start=0,
        log_end=0,
        files=[backup.BackupFile(path=path, bytes=1, sha256=digest)],
    )
    (tmp_path / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(StoreCorrupt, match="is not a file of ours"):
        backup.verify(OsDisk(tmp_path))


def test_a_copy_of_the_small_tables_replaces_the_one_before(tmp_path: Path, meta: Meta) -> None:
    meta.set_offset("g", "orders", 0, 7)
    assert meta.copy() == tmp_path / "data/meta.copy"
    meta.set_offset("g", "orders", 1, 9)
    with closing(Meta(meta.copy())) as copied:
        assert set(copied.stated_topics) == {"orders"}
        assert copied.offsets["g", "orders", 1] == 9
        # Includes offsets that are written lazily.
        assert copied.offsets["g", "orders", 0] == 7


class Filling(OsDisk):
    """A disk with so much room at each look, one after the other."""

    def __init__(self, root: Path, *free: int) -> None:
        super().__init__(root)
        self._free = iter(free)

    def free_bytes(self) -> int:
        return next(self._free)


def test_a_copy_that_does_not_fit_is_not_begun(shop: Shop, meta: Meta, tmp_path: Path) -> None:
    shop.append(200)
    whole = take(tmp_path, meta)
    target = Filling(tmp_path / "full", whole.size + 99_999)
    with pytest.raises(StoreUnusable, match="backup_no_room"):
        backup.restore(OsDisk(tmp_path / "backup"), target, room=Room(free_bytes_min=100_000))
    assert [one for one in (tmp_path / "full").rglob("*") if one.is_file()] == []
    twice = Filling(tmp_path / "twice", whole.size * 2 - 10_000)
    source = OsDisk(tmp_path / "data/store", read_only=True)
    with pytest.raises(StoreUnusable, match="backup_no_room"):
        backup.take(source, twice, opener(meta), now_ms=NOW_MS, release="1", room=Room(copies=2))


def test_a_copy_stops_when_others_fill_the_disk(shop: Shop, meta: Meta, tmp_path: Path) -> None:
    shop.append()
    source = OsDisk(tmp_path / "data/store", read_only=True)
    room = Room(free_bytes_min=1_000)
    target = Filling(tmp_path / "filled", 10**9, 10**9, 999)
    with pytest.raises(StoreUnusable, match="backup_no_room") as refused:
        backup.take(source, target, opener(meta), now_ms=NOW_MS, release="1", room=room)
    assert refused.value.fields["free_bytes"] == 999
