"""``meta.db``: when data is durable, what is refused, and which files are not opened."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest

from escrowmq.model.errors import (
    EscrowError,
    RequestRefused,
    StoreCorrupt,
    StoreUnusable,
    Unavailable,
)
from escrowmq.store.meta import meta as metas
from escrowmq.store.meta.meta import (
    Group,
    MessageType,
    Meta,
    MetaLimits,
    Setting,
    Topic,
)
from escrowmq.store.meta.opening import open_meta
from escrowmq.store.meta.sqlite_file import row_checksum
from escrowmq.transaction.memory.catalog import Catalog
from escrowmq.transaction.records import (
    CatalogMarked,
    GroupPut,
    GroupRemoved,
    SettingPut,
    TopicPut,
    TopicRemoved,
)

NOBODY = 65_534
SQLITE_HEADER_BYTES = 100

ORDERS = Topic(
    name="orders",
    read_queue_count=4,
    write_queue_count=2,
    perm=6,
    message_type=MessageType.TRANSACTION,
    attributes={"owner": "shop", "tags": ["a", "b"]},
    created_at_ms=1_700_000_000_000,
)
BILLING = Group(name="billing", retry_max=3, attributes={"ordered": True})
QUOTA = Setting(name="quota", value={"bytes": 10, "until": None})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "meta.db"


@contextmanager
def sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    """Change the file as another program would."""
    with closing(sqlite3.connect(path)) as connection, connection:
        yield connection


def abandon(meta: Meta) -> None:
    """Leave the file as a crash would, with nothing flushed."""
    meta._file.close()


def refusal(path: Path | str) -> EscrowError:
    with pytest.raises(EscrowError) as raised:
        Meta(path)
    assert raised.value.fields["path"] == str(path)
    return raised.value


class Log:
    """The log's records of topics and groups, one log offset after the other."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.end = 100
        self._apply(CatalogMarked("kept"))

    def _apply(self, record: object) -> None:
        self.end += 100
        self.catalog.apply(record, self.end)  # type: ignore[arg-type] # one of its records

    def put_topic(self, meta: Meta, topic: Topic = ORDERS) -> None:
        known = self.catalog.topics.get(topic.name)
        number = known.incarnation if known else self.catalog.incarnations_end
        self._apply(TopicPut(topic, number))
        meta.changed("topics", topic.name)

    def remove_topic(self, meta: Meta, name: str) -> None:
        self._apply(TopicRemoved(name, self.catalog.topics[name].incarnation, [], "deleted", "me"))
        meta.forget_topic(name)

    def put_group(self, meta: Meta, group: Group = BILLING) -> None:
        self._apply(GroupPut(group))
        meta.changed("groups", group.name)

    def remove_group(self, meta: Meta, name: str) -> None:
        self._apply(GroupRemoved(name, "deleted", "me"))
        meta.forget_group(name)

    def set(self, meta: Meta, setting: Setting, *, is_removed: bool = False) -> None:
        self._apply(SettingPut(setting, is_removed))
        meta.changed("settings", setting.name)


def following(log: Log, path: Path | str, limits: MetaLimits = metas.DEFAULT_LIMITS) -> Meta:
    meta = Meta(path, limits)
    meta.follow(log.catalog)
    return meta


def filled(log: Log, meta: Meta) -> None:
    log.put_topic(meta)
    log.put_group(meta)
    log.set(meta, QUOTA)


# A projection of the log


def test_it_states_what_the_log_says_and_up_to_where(path: Path) -> None:
    log = Log()
    meta = following(log, path)
    filled(log, meta)
    assert meta.is_behind
    assert meta.flush(log.end) == 3
    assert not meta.is_behind
    abandon(meta)
    with closing(Meta(path)) as meta:
        assert meta.standing == log.end
        assert meta.stated_topics["orders"].plain() == ORDERS
        assert meta.stated_groups["billing"].plain() == BILLING
        assert meta.stated_settings == {"quota": QUOTA}
        assert meta.stated_topics["orders"].born == log.catalog.topics["orders"].born


def test_changed_and_removed_names_are_recorded_as_such(path: Path) -> None:
    log = Log()
    with closing(following(log, path)) as meta:
        filled(log, meta)
        meta.flush()
        log.put_topic(meta, Topic(name="orders", read_queue_count=16))
        log.remove_group(meta, "billing")
        log.set(meta, QUOTA, is_removed=True)
    with closing(Meta(path)) as meta:
        assert meta.stated_topics["orders"].read_queue_count == 16
        assert meta.stated_groups == {}
        assert meta.stated_settings == {}


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_file_that_is_behind_the_log_or_lost_follows_it(path: Path, *, is_lost: bool) -> None:
    log = Log()
    meta = following(log, path)
    log.put_topic(meta, Topic(name="gone"))
    meta.flush()
    log.remove_topic(meta, "gone")
    filled(log, meta)
    abandon(meta)
    if is_lost:
        path.unlink()
    with closing(following(log, path)) as meta:
        assert meta.flush() == (3 if is_lost else 4)
    with closing(following(log, path)) as meta:
        assert set(meta.stated_topics) == {"orders"}
        assert set(meta.stated_groups) == {"billing"}
        assert not meta.is_behind


def test_offsets_of_a_deleted_incarnation_never_come_back(path: Path) -> None:
    """Not after a crash before they were dropped, and not from an old copy of the file."""
    log = Log()
    meta = following(log, path)
    filled(log, meta)
    log.put_topic(meta, Topic(name="other"))
    meta.set_offset("billing", "orders", 0, 7)
    meta.set_offset("billing", "other", 0, 3)
    meta.set_offset("unknown", "other", 0, 3)
    meta.set_offset("billing", "RMQ_SYS", 0, 2)
    meta.flush()
    log.remove_topic(meta, "orders")
    log.put_topic(meta)
    abandon(meta)
    meta = Meta(path)
    assert meta.follow(log.catalog, ["RMQ_SYS"]) == 2
    assert set(meta.offsets) == {("billing", "other", 0), ("billing", "RMQ_SYS", 0)}
    meta.close()
    with sqlite(path) as connection:
        assert connection.execute("SELECT count(*) FROM offsets").fetchone() == (2,)


def test_offsets_of_a_group_that_was_made_again_do_not_come_back(path: Path) -> None:
    log = Log()
    meta = following(log, path)
    filled(log, meta)
    meta.set_offset("billing", "orders", 0, 7)
    meta.flush()
    log.remove_group(meta, "billing")
    log.put_group(meta)
    abandon(meta)
    with closing(following(log, path)) as meta:
        assert not meta.offsets
    # A file ahead of the log comes from a lost history, and still has valid offsets of its groups.
    meta = Meta(path)
    meta.set_offset("billing", "orders", 0, 7)
    meta.flush()
    meta.close_file()
    later = Log()
    meta = Meta(":memory:")
    later.put_group(meta, Group(name="first"))
    filled(later, meta)
    later.catalog.topics = log.catalog.topics
    meta.close_file()
    meta = Meta(path)
    assert meta.follow(later.catalog, is_ahead=True) == 0
    assert meta.offsets["billing", "orders", 0] == 7
    meta.close()


def test_very_much_is_written_in_steps(path: Path) -> None:
    log = Log()
    with closing(following(log, path)) as meta:
        for number in range(5):
            log.put_topic(meta, Topic(name=f"t{number}"))
            meta.set_offset("g", f"t{number}", 0, number)
        first = meta.take(log.end, rows_max=3)
        assert (first.count, first.standing) == (3, -1)
        second = meta.take(log.end, rows_max=4)
        # Only now does the file have everything that the log has.
        assert (second.count, len(second.offsets), second.standing) == (4, 2, log.end)
        meta.put_back(second)
        meta.put_back(first)
        assert meta.flush(log.end) == 10
        assert meta.take(log.end).standing == -1


def test_another_thread_may_write_what_was_taken(path: Path) -> None:
    log = Log()
    with closing(following(log, path)) as meta:
        filled(log, meta)
        changes = meta.take(log.end)
        thread = threading.Thread(target=meta.write, args=(changes,))
        thread.start()
        thread.join()
        meta.written(changes)
        assert meta.standing == log.end
    with closing(Meta(path)) as meta:
        assert meta.stated_topics["orders"].plain() == ORDERS


def test_a_write_is_flushed_and_then_its_journal_is_truncated(path: Path) -> None:
    """That makes it durable; see the module's docstring."""
    with closing(Meta(path)) as meta:
        meta.set_offset("g", "t", 0, 1)
        meta.flush()
        assert path.with_name("meta.db-journal").stat().st_size == 0
        with meta._file.transaction() as connection:
            full = 2
            assert connection.execute("PRAGMA synchronous").fetchone() == (full,)


def test_where_nothing_has_changed_nothing_is_written(path: Path) -> None:
    with closing(Meta(path)) as meta:
        before = path.read_bytes()
        meta.write(meta.take())
        assert path.read_bytes() == before


def test_a_closed_file_is_our_own_bug(path: Path) -> None:
    meta = Meta(path)
    meta.close()
    meta.set_offset("g", "t", 0, 1)
    with pytest.raises(sqlite3.ProgrammingError):
        meta.flush()


def test_only_the_methods_write() -> None:
    with closing(Meta(":memory:")) as meta, pytest.raises(TypeError):
        meta.offsets["g", "t", 0] = 1  # type: ignore[index]


# Offsets


def test_there_is_a_greatest_number_of_offsets() -> None:
    with closing(Meta(":memory:", MetaLimits(offsets_max=1))) as meta:
        meta.set_offset("billing", "orders", 0, 1)
        with pytest.raises(RequestRefused, match="offsets_limit"):
            meta.set_offset("billing", "orders", 1, 1)
        assert meta.set_offset("billing", "orders", 0, 2) == 2


@pytest.mark.parametrize(
    ("group", "topic", "queue_id", "offset"),
    [
        ("", "t", 0, 0),
        ("g", "", 0, 0),
        ("g", "t", -1, 0),
        ("g", "t", 65_536, 0),
        ("g", "t", 0, -1),
        ("g", "t", 0, 2**63),
    ],
)
def test_a_bad_offset_is_refused(group: str, topic: str, queue_id: int, offset: int) -> None:
    with closing(Meta(":memory:")) as meta:
        with pytest.raises(RequestRefused, match="bad_offset"):
            meta.set_offset(group, topic, queue_id, offset)
        assert not meta.offsets


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_a_known_offset_is_not_moved_to_a_bad_one(offset: int) -> None:
    with closing(Meta(":memory:")) as meta:
        meta.set_offset("g", "t", 0, 7)
        with pytest.raises(RequestRefused, match="bad_offset"):
            meta.set_offset("g", "t", 0, offset, reset=True)
        assert meta.offsets["g", "t", 0] == 7


def test_an_offset_goes_back_only_by_a_reset() -> None:
    with closing(Meta(":memory:")) as meta:
        assert meta.set_offset("g", "t", 0, 7) == 7
        assert meta.set_offset("g", "t", 0, 5) == 7
        assert meta.set_offset("g", "t", 0, 7) == 7
        assert meta.offsets["g", "t", 0] == 7
        assert meta.set_offset("g", "t", 0, 5, reset=True) == 5
        assert meta.set_offset("g", "t", 0, 6) == 6


def test_an_offset_is_lost_in_a_crash_unless_it_was_flushed(path: Path) -> None:
    meta = Meta(path)
    meta.set_offset("g", "t", 0, 7)
    meta.set_offset("g", "t", 1, 9)
    assert meta.flush() == 2
    assert meta.flush() == 0
    meta.set_offset("g", "t", 0, 8)
    abandon(meta)
    with closing(Meta(path)) as meta:
        assert meta.offsets == {("g", "t", 0): 7, ("g", "t", 1): 9}


def test_closing_flushes_the_offsets(path: Path) -> None:
    with closing(Meta(path)) as meta:
        meta.set_offset("g", "t", 0, 7)
    with closing(Meta(path)) as meta:
        assert meta.offsets == {("g", "t", 0): 7}


def test_after_a_crash_offsets_are_moved_into_their_queue() -> None:
    with closing(Meta(":memory:")) as meta:
        offsets = {0: 3, 1: 10, 2: 30, 3: 20, 4: 99}
        for queue_id, offset in offsets.items():
            meta.set_offset("g", "t", queue_id, offset)
        ends = {("t", queue_id): (10, 20) for queue_id in range(4)}
        assert meta.clamp_offsets(ends) == 3
        # Queue 4 no longer exists; later messages in it start at 0.
        assert [meta.offsets["g", "t", queue_id] for queue_id in range(5)] == [10, 10, 20, 20, 0]
        assert meta.clamp_offsets(ends) == 0


def test_a_clamped_offset_does_not_come_back_after_a_second_crash(path: Path) -> None:
    """The queue may have grown past it by then, and the messages between would be skipped."""
    meta = Meta(path)
    meta.set_offset("g", "t", 0, 500)
    meta.flush()
    abandon(meta)
    meta = Meta(path)
    assert meta.clamp_offsets({("t", 0): (0, 300)}) == 1
    abandon(meta)
    with closing(Meta(path)) as meta:
        assert meta.clamp_offsets({("t", 0): (0, 600)}) == 0
        assert meta.offsets["g", "t", 0] == 300


def test_a_removed_topic_or_group_takes_its_offsets_along(path: Path) -> None:
    """A topic made again under that name counts from 0, so an old offset would skip messages."""
    log = Log()
    meta = following(log, path)
    filled(log, meta)
    log.put_topic(meta, Topic(name="other"))
    log.put_group(meta, Group(name="audit"))
    for group, topic in (("billing", "orders"), ("billing", "other"), ("audit", "orders")):
        meta.set_offset(group, topic, 0, 7)
    meta.set_offset("audit", "other", 0, 7)
    meta.flush()
    meta.set_offset("billing", "orders", 1, 7)
    log.remove_topic(meta, "orders")
    assert set(meta.offsets) == {("billing", "other", 0), ("audit", "other", 0)}
    log.remove_group(meta, "billing")
    assert set(meta.offsets) == {("audit", "other", 0)}
    meta.flush()
    abandon(meta)
    with closing(Meta(path)) as meta:
        assert set(meta.offsets) == {("audit", "other", 0)}


# Files that are not opened, and disks that refuse a write


def test_a_file_that_is_not_sqlite_is_damaged_and_kept(path: Path) -> None:
    path.write_text("these are my notes, keep them\n" * 100)
    error = refusal(path)
    assert isinstance(error, StoreCorrupt)
    assert error.code == "meta_damaged"
    meta, found = open_meta(path)
    meta.close()
    assert Path(found.aside).read_text().startswith("these are my notes")
    assert "meta_damaged" in found.loss


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE mine (x)", "PRAGMA application_id = 7", "PRAGMA user_version = 1"]
)
def test_an_sqlite_file_of_another_application_is_foreign_and_untouched(
    path: Path, statement: str
) -> None:
    with sqlite(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(statement)
    before = path.read_bytes()
    error = refusal(path)
    assert isinstance(error, StoreUnusable)
    assert error.code == "meta_foreign"
    assert path.read_bytes() == before


def test_an_empty_file_is_a_new_one(path: Path) -> None:
    """SQLite leaves one behind if the process dies while it creates the tables."""
    path.touch()
    Meta(path).close()


def test_a_file_that_the_store_knows_is_never_foreign(path: Path) -> None:
    Meta(path).close()
    with sqlite(path) as connection:
        connection.execute("PRAGMA application_id = 7")
        connection.execute("DROP TABLE offsets")
    with pytest.raises(StoreUnusable, match="meta_foreign"):
        open_meta(path)
    meta, found = open_meta(path, is_known=True)
    meta.close()
    assert "meta_foreign" in found.damage
    assert Path(found.aside).exists()


def test_a_version_that_no_release_has_is_damage(path: Path) -> None:
    Meta(path).close()
    with sqlite(path) as connection:
        connection.execute("CREATE TABLE of_another_release (x)")
        connection.execute("PRAGMA user_version = 16777218")
    assert refusal(path).code == "meta_damaged"


@pytest.mark.parametrize("damage", [0x01, 0x80, 0xFF])
def test_no_damaged_byte_of_the_header_refuses_the_start(path: Path, damage: int) -> None:
    Meta(path).close()
    intact = path.read_bytes()
    for at in range(SQLITE_HEADER_BYTES):
        header = bytearray(intact)
        header[at] ^= damage
        path.write_bytes(header)
        meta, found = open_meta(path)
        meta.close()
        if found.aside:
            assert Path(found.aside).read_bytes()[:at] == intact[:at]
            Path(found.aside).unlink()


@pytest.mark.parametrize("version", [0, 3])
def test_a_version_that_we_do_not_know_is_not_opened(path: Path, version: int) -> None:
    Meta(path).close()
    with sqlite(path) as connection:
        connection.execute("CREATE TABLE of_another_release (x)")
        connection.execute(f"PRAGMA user_version = {version}")
    error = refusal(path)
    assert isinstance(error, StoreUnusable)
    assert (error.code, error.fields["version"]) == ("meta_version_unknown", version)


def test_a_damaged_page_is_found_at_the_start(path: Path) -> None:
    with closing(Meta(path)) as meta:
        for number in range(200):
            meta.set_offset("g", f"topic-{number}", 0, number)
    content = bytearray(path.read_bytes())
    content[-4096 : -4096 + 64] = b"\xff" * 64
    path.write_bytes(content)
    error = refusal(path)
    assert isinstance(error, StoreCorrupt)
    assert error.code == "meta_damaged"


def test_damage_that_no_row_shows_is_found_too(path: Path) -> None:
    """The list of free pages, which the next rows would use."""
    log = Log()
    with closing(following(log, path)) as meta:
        large = Setting(name="large", value="x" * 40_000)
        log.set(meta, large)
        meta.flush()
        log.set(meta, large, is_removed=True)
    content = bytearray(path.read_bytes())
    assert content[36:40] != bytes(4)
    content[39] += 1
    path.write_bytes(content)
    assert refusal(path).code == "meta_damaged"


def test_damage_that_sqlite_tells_in_bytes_that_are_no_text_is_damage(path: Path) -> None:
    Meta(path).close()
    damaged = path.read_bytes().replace(b"CREATE TABLE offsets", b"CREATE \xdcABLE offsets")
    path.write_bytes(damaged)
    assert refusal(path).code == "meta_damaged"


def test_a_file_cut_short_is_damaged(path: Path) -> None:
    Meta(path).close()
    os.truncate(path, path.stat().st_size - 4096)
    assert refusal(path).code == "meta_damaged"


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        ("UPDATE topics SET document = replace(document, '4', '5')", "topics"),
        ("UPDATE topics SET name = 'other'", "topics"),
        ("UPDATE topics SET document = CAST(x'ff' AS TEXT)", "topics"),
        ("UPDATE groups SET document = CAST(x'ff' AS TEXT)", "groups"),
        ("UPDATE offsets SET queue_offset = queue_offset + 1 WHERE queue_id = 1", "offsets"),
        ("UPDATE standing SET log_offset = log_offset + 1", "standing"),
        # A row with a right checksum may still be invalid, if another program wrote it.
        (f"INSERT INTO topics VALUES ('x', '[', {row_checksum(('x', '['))})", ""),
        (f"INSERT INTO groups VALUES ('x', '{{}}', {row_checksum(('x', '{}'))})", ""),
        (f"INSERT INTO offsets VALUES ('g', 't', -1, 0, {row_checksum(('g', 't', -1, 0))})", ""),
        (f"INSERT INTO standing VALUES ('x', {row_checksum(('x',))})", ""),
    ],
)
def test_a_damaged_row_is_left_out_and_a_copy_of_the_file_kept(
    path: Path, damage: str, lost: str
) -> None:
    log = Log()
    with closing(following(log, path)) as meta:
        filled(log, meta)
        meta.set_offset("billing", "orders", 0, 7)
        meta.set_offset("billing", "orders", 1, 8)
        meta.flush(log.end)
    with sqlite(path) as connection:
        connection.execute(damage)
    meta, found = open_meta(path)
    assert meta.bad_rows == 1
    assert found.loss == "1 rows are damaged"
    assert Path(found.aside).name == "meta.db.damaged-1"
    meta.follow(log.catalog)
    # A damaged offset costs only itself; without its topic or group an offset has no owner.
    left = {"offsets": {0}, "topics": set(), "groups": set()}.get(lost, {0, 1})
    assert {key[2] for key in meta.offsets} == left
    meta.close(log.end)
    meta, found = open_meta(path)
    assert (meta.bad_rows, found.loss, meta.standing) == (0, "", log.end)
    assert set(meta.stated_topics) == {"orders"}
    meta.close()
    with closing(Meta(path.with_name("meta.db.damaged-1"))) as kept:
        assert kept.bad_rows == 1


def test_rows_that_could_not_be_written_anew_are_written_later(path: Path) -> None:
    log = Log()
    with closing(following(log, path)) as meta:
        filled(log, meta)
    with sqlite(path) as connection:
        connection.execute("UPDATE topics SET name = 'other'")
    meta, _ = open_meta(path)
    meta.follow(log.catalog)
    meta.put_back(meta.take())
    assert meta.take().is_anew
    meta.close_file()


def test_a_damaged_file_is_moved_aside_with_its_journal_and_never_deleted(path: Path) -> None:
    for number in (1, 2):
        Meta(path).close()
        with sqlite(path) as connection:
            connection.execute("DROP TABLE offsets")
        path.with_name("meta.db-journal").write_bytes(b"half")
        meta, found = open_meta(path)
        meta.set_offset("g", "t", 0, 1)
        meta.close()
        assert Path(found.aside).name == f"meta.db.damaged-{number}"
        assert path.with_name(f"meta.db.damaged-{number}-journal").exists()
        assert found.damage
    meta, found = open_meta(path)
    meta.close()
    assert found.loss == ""


def test_a_missing_file_is_told(path: Path) -> None:
    meta, found = open_meta(path)
    meta.close()
    assert found.is_new
    assert found.loss == "meta.db was missing"


def test_a_file_of_version_1_is_read_and_made_one_of_version_2(path: Path) -> None:
    """Its topics are older than the log's records of topics."""
    Meta(path).close()
    document = msgspec.json.encode(ORDERS).decode()
    row = ("orders", document)
    with sqlite(path) as connection:
        connection.execute("DROP TABLE standing")
        connection.execute("CREATE TABLE users (name TEXT)")
        connection.execute("PRAGMA user_version = 1")
        connection.execute("INSERT INTO topics VALUES (?, ?, ?)", (*row, row_checksum(row)))
    for _ in range(2):
        with closing(Meta(path)) as meta:
            assert (meta.standing, meta.stated_topics["orders"].born) == (-1, 0)
            assert meta.stated_topics["orders"].plain() == ORDERS


def test_a_second_owner_is_turned_away(path: Path) -> None:
    with closing(Meta(path)):
        error = refusal(path)
        assert isinstance(error, StoreUnusable)
        assert error.code == "meta_locked"
    Meta(path).close()


def test_a_missing_directory_and_a_directory_of_that_name_cannot_be_opened(tmp_path: Path) -> None:
    assert refusal(tmp_path / "missing" / "meta.db").code == "meta_cannot_open"
    assert refusal(tmp_path).code == "meta_cannot_open"


@pytest.fixture
def shared_directory() -> Iterator[Path]:
    """A directory that an ordinary user may enter, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(directory)


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Drop the superuser's right to write anywhere, for the block."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize(
    ("file_mode", "code"),
    [
        (None, "meta_cannot_open"),
        # The file may be written, but its journal cannot be created.
        (0o666, "meta_read_only"),
        (0o444, "meta_read_only"),
    ],
)
def test_a_read_only_directory_is_found_at_the_start(
    shared_directory: Path, file_mode: int | None, code: str
) -> None:
    path = shared_directory / "meta.db"
    if file_mode is not None:
        Meta(path).close()
        path.chmod(file_mode)
        path.with_name("meta.db-journal").unlink(missing_ok=True)
    shared_directory.chmod(0o555)
    with ordinary_user():
        error = refusal(path)
    assert isinstance(error, StoreUnusable)
    assert error.code == code


def test_a_full_disk_refuses_the_write_and_changes_nothing(path: Path) -> None:
    log = Log()
    meta = following(log, path, MetaLimits(pages_max=8))
    filled(log, meta)
    meta.flush()
    for offset in range(1_000):
        meta.set_offset("g", f"topic-{offset}", 0, offset)
    with pytest.raises(Unavailable, match="meta_full"):
        meta.flush()
    assert meta.is_behind
    abandon(meta)
    with closing(Meta(path)) as meta:
        assert set(meta.stated_topics) == {"orders"}
        assert not meta.offsets


def test_offsets_that_found_no_room_are_written_once_there_is_some(path: Path) -> None:
    log = Log()
    with closing(following(log, path, MetaLimits(pages_max=20))) as meta:
        large = Setting(name="large", value="x" * 40_000)
        log.set(meta, large)
        meta.flush()
        for queue_id in range(1_000):
            meta.set_offset("g", "t", queue_id, 1)
        with pytest.raises(Unavailable, match="meta_full"):
            meta.flush()
        log.set(meta, large, is_removed=True)
        assert meta.flush() == 1_001


def test_a_close_that_finds_no_room_says_so_and_gives_the_file_back(path: Path) -> None:
    meta = Meta(path, MetaLimits(pages_max=8))
    for queue_id in range(2_000):
        meta.set_offset("g", "t", queue_id, 1)
    with pytest.raises(Unavailable, match="meta_full"):
        meta.close()
    Meta(path).close()


def test_no_room_for_the_tables_is_an_error_of_the_start(path: Path) -> None:
    with pytest.raises(Unavailable, match="meta_full"):
        Meta(path, MetaLimits(pages_max=2))
    Meta(path).close()


def test_a_write_that_fails_below_sqlite_stops_the_store(path: Path) -> None:
    """The kernel refuses to let files grow, which SQLite reports as an I/O error."""
    log = Log()
    with closing(following(log, path)) as meta:
        log.set(meta, Setting(name="large", value="x" * 60_000))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, before[1]))
        try:
            with pytest.raises(StoreUnusable, match="meta_io_failed"):
                meta.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_error_without_a_rule_of_its_own_still_has_a_code(path: Path) -> None:
    with (
        closing(Meta(path)) as meta,
        pytest.raises(StoreUnusable, match="meta_failed"),
        meta._file.transaction() as connection,
    ):
        connection.execute("INSERT INTO topics VALUES ('a', NULL, 0)")
