"""``meta.db``: what is durable when, what is refused, and which files are not opened."""

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
from escrowmq.store.meta import (
    DOCUMENT_BYTES_MAX,
    Group,
    MessageType,
    Meta,
    MetaLimits,
    Setting,
    Topic,
    User,
)
from escrowmq.store.meta_file import row_checksum

NOBODY = 65_534

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
ANNA = User(name="anna", secret_hash="scrypt$1$2", attributes={"admin": True})
QUOTA = Setting(name="quota", value={"bytes": 10, "until": None})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "meta.db"


@contextmanager
def sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    """What another program does to the file."""
    with closing(sqlite3.connect(path)) as connection, connection:
        yield connection


def abandon(meta: Meta) -> None:
    """What a crash leaves: the file as it is, nothing flushed on the way out."""
    meta._file.close()


def refusal(path: Path | str) -> EscrowError:
    with pytest.raises(EscrowError) as raised:
        Meta(path)
    assert raised.value.fields["path"] == str(path)
    return raised.value


# Written through


def test_topics_groups_users_and_settings_survive_a_crash(path: Path) -> None:
    meta = Meta(path)
    meta.put_topic(ORDERS)
    meta.put_group(BILLING)
    meta.put_user(ANNA)
    meta.put_setting(QUOTA)
    abandon(meta)
    with closing(Meta(path)) as meta:
        assert meta.topics == {"orders": ORDERS}
        assert meta.groups == {"billing": BILLING}
        assert meta.users == {"anna": ANNA}
        assert meta.settings == {"quota": QUOTA}


def test_a_write_is_flushed_and_then_its_journal_is_truncated(path: Path) -> None:
    """That is what makes it durable; see the module's text."""
    with closing(Meta(path)) as meta:
        meta.put_topic(ORDERS)
        assert path.with_name("meta.db-journal").stat().st_size == 0
        with meta._file.transaction() as connection:
            full = 2
            assert connection.execute("PRAGMA synchronous").fetchone() == (full,)


def test_a_change_replaces_what_was_there(path: Path) -> None:
    with closing(Meta(path)) as meta:
        meta.put_topic(ORDERS)
        meta.put_topic(Topic(name="orders", read_queue_count=16))
        assert meta.topics["orders"].read_queue_count == 16
    with closing(Meta(path)) as meta:
        assert meta.topics == {"orders": Topic(name="orders", read_queue_count=16)}


def test_what_is_removed_stays_removed(path: Path) -> None:
    meta = Meta(path)
    meta.put_topic(ORDERS)
    meta.put_group(BILLING)
    meta.put_user(ANNA)
    meta.put_setting(QUOTA)
    removals = (meta.remove_topic, meta.remove_group, meta.remove_user, meta.remove_setting)
    names = ("orders", "billing", "anna", "quota")
    assert [remove(name) for remove, name in zip(removals, names, strict=True)] == [True] * 4
    assert [remove(name) for remove, name in zip(removals, names, strict=True)] == [False] * 4
    abandon(meta)
    with closing(Meta(path)) as meta:
        assert [meta.topics, meta.groups, meta.users, meta.settings] == [{}] * 4


def test_a_value_in_memory_is_what_the_next_start_will_read(path: Path) -> None:
    """JSON has no tuples, and the caller keeps the dict it passed."""
    attributes: dict[str, object] = {"pair": (1, 2)}
    with closing(Meta(path)) as meta:
        meta.put_topic(Topic(name="orders", attributes=attributes))
        attributes["late"] = 1
        kept = meta.topics["orders"]
        assert kept.attributes == {"pair": [1, 2]}
    with closing(Meta(path)) as meta:
        assert meta.topics["orders"] == kept


def test_it_works_in_memory_alone() -> None:
    with closing(Meta(":memory:")) as meta:
        meta.put_topic(ORDERS)
        meta.set_offset("billing", "orders", 0, 5)
        assert meta.flush_offsets() == 1
        assert meta.topics["orders"] == ORDERS


def test_nobody_writes_past_the_methods() -> None:
    with closing(Meta(":memory:")) as meta, pytest.raises(TypeError):
        meta.topics["x"] = ORDERS  # type: ignore[index]


def test_a_users_secret_is_not_printed() -> None:
    assert "scrypt" not in repr(ANNA)


def test_one_thread_owns_it() -> None:
    raised: list[Exception] = []

    def intrude(meta: Meta) -> None:
        try:
            meta.put_topic(ORDERS)
        except sqlite3.ProgrammingError as error:
            raised.append(error)

    with closing(Meta(":memory:")) as meta:
        thread = threading.Thread(target=intrude, args=(meta,))
        thread.start()
        thread.join()
        assert raised
        assert not meta.topics


# Refusals


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (Topic(name=""), "length >= 1"),
        (Topic(name="x" * 256), "length <= 255"),
        (Topic(name="a\0b"), "matching regex"),
        (Topic(name="line\n"), "matching regex"),
        (Topic(name="\ud800"), "surrogates not allowed"),
        (Topic(name="a", read_queue_count=-1), "read_queue_count"),
        (Topic(name="a", write_queue_count=65_537), "write_queue_count"),
        (Topic(name="a", perm=16), "perm"),
        (Topic(name="a", created_at_ms=-1), "created_at_ms"),
        # Only what JSON can say can be kept.
        (Topic(name="a", attributes={"x": object()}), "unsupported"),
    ],
)
def test_a_bad_topic_is_refused_before_anything_is_written(topic: Topic, reason: str) -> None:
    with closing(Meta(":memory:")) as meta:
        with pytest.raises(RequestRefused, match=f"bad_topic.*{reason}"):
            meta.put_topic(topic)
        assert not meta.topics


def test_attributes_that_contain_themselves_are_refused() -> None:
    endless: dict[str, object] = {}
    endless["self"] = endless
    with closing(Meta(":memory:")) as meta, pytest.raises(RequestRefused, match="bad_group"):
        meta.put_group(Group(name="a", attributes=endless))


def test_a_document_has_a_greatest_size() -> None:
    with closing(Meta(":memory:")) as meta:
        frame = len(msgspec.json.encode(Setting(name="a", value="")))
        meta.put_setting(Setting(name="a", value="x" * (DOCUMENT_BYTES_MAX - frame)))
        with pytest.raises(RequestRefused, match="setting_too_large"):
            meta.put_setting(Setting(name="a", value="x" * (DOCUMENT_BYTES_MAX - frame + 1)))


def test_each_table_has_a_greatest_number_of_rows() -> None:
    limits = MetaLimits(topics_max=1, groups_max=1, users_max=1, settings_max=1, offsets_max=1)
    with closing(Meta(":memory:", limits)) as meta:
        for _ in range(2):  # What is there may still be changed.
            meta.put_topic(ORDERS)
            meta.put_group(BILLING)
            meta.put_user(ANNA)
            meta.put_setting(QUOTA)
            meta.set_offset("billing", "orders", 0, 1)
        with pytest.raises(RequestRefused, match="topics_limit"):
            meta.put_topic(Topic(name="b"))
        with pytest.raises(RequestRefused, match="groups_limit"):
            meta.put_group(Group(name="b"))
        with pytest.raises(RequestRefused, match="users_limit"):
            meta.put_user(User(name="b", secret_hash=""))
        with pytest.raises(RequestRefused, match="settings_limit"):
            meta.put_setting(Setting(name="b", value=0))
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


# Offsets


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
    assert meta.flush_offsets() == 2
    assert meta.flush_offsets() == 0
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
        # Queue 4 is not there any more: whatever comes into it later begins at 0.
        assert [meta.offsets["g", "t", queue_id] for queue_id in range(5)] == [10, 10, 20, 20, 0]
        assert meta.clamp_offsets(ends) == 0


def test_a_clamped_offset_does_not_come_back_after_a_second_crash(path: Path) -> None:
    """By then the queue may have grown past it, and the messages between would be skipped."""
    meta = Meta(path)
    meta.set_offset("g", "t", 0, 500)
    meta.flush_offsets()
    abandon(meta)
    meta = Meta(path)
    assert meta.clamp_offsets({("t", 0): (0, 300)}) == 1
    abandon(meta)
    with closing(Meta(path)) as meta:
        assert meta.clamp_offsets({("t", 0): (0, 600)}) == 0
        assert meta.offsets["g", "t", 0] == 300


def test_a_removed_topic_or_group_takes_its_offsets_along(path: Path) -> None:
    """A topic made again under that name counts from 0, and an old offset would skip messages."""
    meta = Meta(path)
    meta.put_topic(ORDERS)
    meta.put_group(BILLING)
    for group, topic in (("billing", "orders"), ("billing", "other"), ("audit", "orders")):
        meta.set_offset(group, topic, 0, 7)
    meta.set_offset("audit", "other", 0, 7)
    meta.flush_offsets()
    meta.set_offset("billing", "orders", 1, 7)
    meta.remove_topic("orders")
    assert set(meta.offsets) == {("billing", "other", 0), ("audit", "other", 0)}
    meta.remove_group("billing")
    assert set(meta.offsets) == {("audit", "other", 0)}
    assert meta.flush_offsets() == 0
    abandon(meta)
    with closing(Meta(path)) as meta:
        assert set(meta.offsets) == {("audit", "other", 0)}


# Files that are not opened, and disks that do not take a write


def test_a_file_that_is_not_sqlite_is_foreign(path: Path) -> None:
    path.write_text("these are my notes, keep them\n" * 100)
    error = refusal(path)
    assert isinstance(error, StoreUnusable)
    assert error.code == "meta_foreign"
    assert path.read_text().startswith("these are my notes")


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
    """SQLite leaves one behind if the process dies while it makes the tables."""
    path.touch()
    with closing(Meta(path)) as meta:
        meta.put_topic(ORDERS)


@pytest.mark.parametrize("version", [0, 2])
def test_a_version_that_we_do_not_know_is_not_opened(path: Path, version: int) -> None:
    Meta(path).close()
    with sqlite(path) as connection:
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
    """The list of free pages, from which the next rows would get theirs."""
    with closing(Meta(path)) as meta:
        meta.put_setting(Setting(name="large", value="x" * 40_000))
        meta.remove_setting("large")
    content = bytearray(path.read_bytes())
    assert content[36:40] != bytes(4)
    content[39] += 1
    path.write_bytes(content)
    assert refusal(path).code == "meta_damaged"


def test_a_file_cut_short_is_damaged(path: Path) -> None:
    Meta(path).close()
    os.truncate(path, path.stat().st_size - 4096)
    assert refusal(path).code == "meta_damaged"


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE users",
        "UPDATE topics SET document = replace(document, '4', '5')",
        "UPDATE topics SET name = 'other'",
        "UPDATE topics SET document = CAST(x'ff' AS TEXT)",
        "UPDATE offsets SET queue_offset = queue_offset + 1",
        # Under a right checksum there may still be nonsense, from a program that is not ours.
        f"INSERT INTO topics VALUES ('x', '[', {row_checksum(('x', '['))})",
        f"INSERT INTO groups VALUES ('x', '{{}}', {row_checksum(('x', '{}'))})",
        f"INSERT INTO offsets VALUES ('g', 't', -1, 0, {row_checksum(('g', 't', -1, 0))})",
    ],
)
def test_a_row_that_makes_no_sense_is_damage(path: Path, damage: str) -> None:
    with closing(Meta(path)) as meta:
        meta.put_topic(ORDERS)
        meta.set_offset("g", "t", 0, 7)
    with sqlite(path) as connection:
        connection.execute(damage)
    error = refusal(path)
    assert isinstance(error, StoreCorrupt)
    assert error.code == "meta_damaged"


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
    """A directory that an ordinary user may enter, which pytest's own are not."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(directory)


@contextmanager
def ordinary_user() -> Iterator[None]:
    """The superuser may write anywhere; give that up for the block."""
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
        # The file may be written, its journal may not be made.
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
    with closing(Meta(path, MetaLimits(pages_max=8))) as meta:
        meta.put_topic(ORDERS)
        for offset in range(1_000):
            meta.set_offset("g", f"topic-{offset}", 0, offset)
        with pytest.raises(Unavailable, match="meta_full"):
            meta.flush_offsets()
        with pytest.raises(Unavailable, match="meta_full"):
            meta.put_setting(Setting(name="large", value="x" * 40_000))
        assert not meta.settings
        meta.put_group(BILLING)  # What is small still fits.
        abandon(meta)
        meta._unwritten.clear()
    with closing(Meta(path)) as meta:
        assert meta.topics == {"orders": ORDERS}
        assert meta.groups == {"billing": BILLING}
        assert not meta.offsets


def test_offsets_that_found_no_room_are_written_once_there_is_some(path: Path) -> None:
    with closing(Meta(path, MetaLimits(pages_max=20))) as meta:
        meta.put_setting(Setting(name="large", value="x" * 40_000))
        for queue_id in range(1_000):
            meta.set_offset("g", "t", queue_id, 1)
        with pytest.raises(Unavailable, match="meta_full"):
            meta.flush_offsets()
        meta.remove_setting("large")
        assert meta.flush_offsets() == 1_000


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
    """The kernel refuses to let files grow, which SQLite can only call an I/O error."""
    with closing(Meta(path)) as meta:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, before[1]))
        try:
            with pytest.raises(StoreUnusable, match="meta_io_failed"):
                meta.put_setting(Setting(name="large", value="x" * 60_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert not meta.settings


def test_an_error_without_a_rule_of_its_own_still_has_a_code(path: Path) -> None:
    with closing(Meta(path)) as meta:
        with (
            pytest.raises(StoreUnusable, match="meta_failed"),
            meta._file.transaction() as connection,
        ):
            connection.execute("INSERT INTO topics VALUES ('a', NULL, 0)")
        meta.put_topic(ORDERS)
