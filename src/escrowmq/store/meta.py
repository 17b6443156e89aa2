"""``meta.db``: topics, consumer groups, users, settings and consumer offsets, in one SQLite file.

What is here is small, read all the time and written rarely: every read is a dict lookup, the file
is read once, when it is opened.  Messages and transactions are not here; their log decides.

* **Topics, groups, users and settings are written through**: durable when the call returns, and in
  memory only after that.
* **Consumer offsets are lazy**: ``set_offset`` changes memory, ``flush_offsets`` writes what has
  changed in one transaction.  Offsets lost in a crash mean redelivery, never loss.  Two things may
  not wait, because a stale offset that comes back would skip messages: clamping after a crash, and
  dropping the offsets of a topic or group that is removed.

One thread owns a ``Meta``; no clock is read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Annotated, Generic, TypeVar

import msgspec

from escrowmq.model.errors import RequestRefused
from escrowmq.store.meta_file import MetaFile, row_checksum

DOCUMENT_BYTES_MAX = 65_536
OFFSET_MAX = 2**63 - 1

# RocketMQ allows 127 characters in a topic's name and 255 where it puts %RETRY% or %DLQ% before it;
# which characters is the protocol's business, as long as people can read them.
Name = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f\ud800-\udfff]+\Z"),
]
QueueCount = Annotated[int, msgspec.Meta(ge=0, le=65_536)]
OffsetKey = tuple[str, str, int]
"""Consumer group, topic, queue id."""


class MessageType(StrEnum):
    """What kind of message a topic is for."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"
    UNSPECIFIED = "UNSPECIFIED"


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as its owner set it up."""

    name: Name
    read_queue_count: QueueCount = 8
    write_queue_count: QueueCount = 8
    #: RocketMQ's bits: 8 priority, 4 read, 2 write, 1 inherit.
    perm: Annotated[int, msgspec.Meta(ge=0, le=15)] = 6
    message_type: MessageType = MessageType.NORMAL
    attributes: Mapping[str, object] = {}
    created_at_ms: Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)] = 0


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group."""

    name: Name
    #: Deliveries after the first one, before a message goes to the dead letters.
    retry_max: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 16
    #: Without one, what a consumer gives back is not delivered again.
    retry_queue_count: QueueCount = 1
    may_consume: bool = True
    may_broadcast: bool = True
    #: Members are told at once when one comes or goes.
    is_change_notified: bool = True
    attributes: Mapping[str, object] = {}


class User(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who may log in.  The secret itself is not kept."""

    name: Name
    secret_hash: str
    attributes: Mapping[str, object] = {}

    def __repr__(self) -> str:
        # What ends up in a log line must not help to guess the secret.
        return f"User(name={self.name!r})"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A value that was set while the broker ran; anything that JSON can say."""

    name: Name
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaLimits:
    """How much may be kept; reaching one is a refusal of whatever would be new."""

    topics_max: int = 20_000
    groups_max: int = 20_000
    users_max: int = 10_000
    settings_max: int = 10_000
    offsets_max: int = 1_000_000
    #: Of 4 KiB each: the file never grows beyond 1 GiB.
    pages_max: int = 262_144


DEFAULT_LIMITS = MetaLimits()


class _Offset(msgspec.Struct, frozen=True, array_like=True):
    consumer_group: Name
    topic: Name
    queue_id: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    queue_offset: Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]


Document = TypeVar("Document", Topic, Group, User, Setting)


class _Documents(Generic[Document]):
    """A table of named JSON documents and its mirror in memory."""

    def __init__(self, file: MetaFile, table: str, kind: type[Document], rows_max: int) -> None:
        self._file = file
        self._table = table
        self._kind: type[Document] = kind
        self._rows_max = rows_max
        # The names of tables are constants of this module.
        self._insert = f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)"  # noqa: S608
        self._delete = f"DELETE FROM {table} WHERE name = ?"  # noqa: S608
        self.rows: dict[str, Document] = {}
        for name, document in file.rows(table, ("name", "document")):
            try:
                value = msgspec.json.decode(str(document), type=kind)
            except msgspec.DecodeError as error:
                raise file.damaged(str(error), table=table, key=name) from error
            self.rows[value.name] = value

    def put(self, value: Document) -> None:
        if value.name not in self.rows and len(self.rows) >= self._rows_max:
            raise RequestRefused(f"{self._table}_limit", name=value.name, rows_max=self._rows_max)
        try:
            document = msgspec.json.encode(value)
            # Back through the decoder, which checks the limits of each field; and what is kept is
            # what the next start will read, not something the caller can still change.
            value = msgspec.json.decode(document, type=self._kind)
        except (ValueError, TypeError, RecursionError) as error:
            raise RequestRefused(
                f"bad_{self._kind.__name__.lower()}", str(error), name=value.name
            ) from error
        if len(document) > DOCUMENT_BYTES_MAX:
            raise RequestRefused(
                f"{self._kind.__name__.lower()}_too_large",
                name=value.name,
                bytes=len(document),
                bytes_max=DOCUMENT_BYTES_MAX,
            )
        row: tuple[str, str] = (value.name, document.decode())
        with self._file.transaction() as connection:
            connection.execute(self._insert, (*row, row_checksum(row)))
        self.rows[value.name] = value

    def remove(self, name: str, *more: tuple[str, tuple[str, ...]]) -> bool:
        """Whether it was there; ``more`` are statements that belong to the same transaction."""
        if name not in self.rows:
            return False
        with self._file.transaction() as connection:
            connection.execute(self._delete, (name,))
            for statement, values in more:
                connection.execute(statement, values)
        del self.rows[name]
        return True


class Meta:
    """The broker's small tables.

    ``topics``, ``groups``, ``users`` and ``settings`` map a name to its value, ``offsets`` maps
    (consumer group, topic, queue id) to the offset of the next message; all are for reading.
    Opening raises StoreUnusable if the file cannot be used as it is, StoreCorrupt if it is damaged.
    A write raises Unavailable("meta_full") if there is no room; nothing has changed then.
    """

    def __init__(self, path: str | Path, limits: MetaLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._file = MetaFile(str(path), limits.pages_max)
        self._copying = Lock()
        try:
            self._load()
        except BaseException:
            self._file.close()
            raise

    def _load(self) -> None:
        file, limits = self._file, self._limits
        self._topics = _Documents(file, "topics", Topic, limits.topics_max)
        self._groups = _Documents(file, "groups", Group, limits.groups_max)
        self._users = _Documents(file, "users", User, limits.users_max)
        self._settings = _Documents(file, "settings", Setting, limits.settings_max)
        self._offsets: dict[OffsetKey, int] = {}
        self._unwritten: set[OffsetKey] = set()
        for row in file.rows("offsets", _Offset.__struct_fields__):
            try:
                offset = msgspec.convert(row, _Offset)
            except msgspec.ValidationError as error:
                raise file.damaged(str(error), table="offsets", key=row[0]) from error
            self._offsets[offset.consumer_group, offset.topic, offset.queue_id] = (
                offset.queue_offset
            )
        self.topics: Mapping[str, Topic] = MappingProxyType(self._topics.rows)
        self.groups: Mapping[str, Group] = MappingProxyType(self._groups.rows)
        self.users: Mapping[str, User] = MappingProxyType(self._users.rows)
        self.settings: Mapping[str, Setting] = MappingProxyType(self._settings.rows)
        self.offsets: Mapping[OffsetKey, int] = MappingProxyType(self._offsets)

    def put_topic(self, topic: Topic) -> None:
        """Make the topic, or change it."""
        self._topics.put(topic)

    def remove_topic(self, name: str) -> bool:
        """Forget the topic and every consumer's offsets in it; whether it was there.

        A topic made later under the same name counts from 0 again, and an old offset would skip
        its first messages.
        """
        removed = self._topics.remove(name, ("DELETE FROM offsets WHERE topic = ?", (name,)))
        if removed:
            self._forget_offsets(key for key in self._offsets if key[1] == name)
        return removed

    def put_group(self, group: Group) -> None:
        """Make the consumer group, or change it."""
        self._groups.put(group)

    def remove_group(self, name: str) -> bool:
        """Forget the consumer group and its offsets; whether it was there."""
        statement = "DELETE FROM offsets WHERE consumer_group = ?"
        removed = self._groups.remove(name, (statement, (name,)))
        if removed:
            self._forget_offsets(key for key in self._offsets if key[0] == name)
        return removed

    def put_user(self, user: User) -> None:
        """Make the user, or change it."""
        self._users.put(user)

    def remove_user(self, name: str) -> bool:
        """Forget the user; whether it was there."""
        return self._users.remove(name)

    def put_setting(self, setting: Setting) -> None:
        """Set a value."""
        self._settings.put(setting)

    def remove_setting(self, name: str) -> bool:
        """Forget a value; whether it was there."""
        return self._settings.remove(name)

    def set_offset(
        self, group: str, topic: str, queue_id: int, offset: int, *, reset: bool = False
    ) -> int:
        """Note how far a group has come, and answer how far that is now.

        Acknowledgements may arrive out of order, so an offset only moves forward unless it is a
        ``reset``.  Nothing is written before ``flush_offsets``; who resets by hand should call it.
        Whether topic and group exist is for the caller to check.
        """
        key = (group, topic, queue_id)
        known = self._offsets.get(key)
        if known is None:
            self._check_offset(key, offset)
        elif offset <= known and not reset:
            return known
        elif not 0 <= offset <= OFFSET_MAX:
            raise RequestRefused("bad_offset", key=key, offset=offset)
        self._offsets[key] = offset
        self._unwritten.add(key)
        return offset

    def _check_offset(self, key: OffsetKey, offset: int) -> None:
        if len(self._offsets) >= self._limits.offsets_max:
            raise RequestRefused("offsets_limit", key=key, rows_max=self._limits.offsets_max)
        try:
            msgspec.convert((*key, offset), _Offset)
        except msgspec.ValidationError as error:
            raise RequestRefused("bad_offset", str(error), key=key, offset=offset) from error

    def flush_offsets(self) -> int:
        """Write the offsets that changed since the last time, all or none; how many."""
        # In the order of the table, so that neighbours share a page while it is at hand.
        rows = [(*key, self._offsets[key]) for key in sorted(self._unwritten)]
        if not rows:
            return 0
        with self._file.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?, ?)",
                ((*row, row_checksum(row)) for row in rows),
            )
        self._unwritten.clear()
        return len(rows)

    def clamp_offsets(self, ends: Mapping[tuple[str, int], tuple[int, int]]) -> int:
        """Move every offset into its queue's [start, end], durably; how many moved.

        ``ends`` names every queue there is, as (topic, queue id).  A queue that is not in it holds
        nothing, so its consumers begin at 0.  It is not lazy: an offset beyond the end that came
        back after a second crash would by then skip messages that were written in between.
        """
        moved = 0
        for key, offset in self._offsets.items():
            start, end = ends.get(key[1:], (0, 0))
            clamped = min(max(offset, start), end)
            if clamped != offset:
                self._offsets[key] = clamped
                self._unwritten.add(key)
                moved += 1
        self.flush_offsets()
        return moved

    def copy(self) -> Path:
        """Write everything, and a copy of it beside the file, for a backup; where that is."""
        self.flush_offsets()
        return self.copy_file()

    def copy_file(self) -> Path:
        """Write a copy of the file beside it; other threads may call this.

        Other processes cannot read the file itself, which is locked.  A process that has an older
        copy open keeps it.
        """
        path = Path(self._file.path)
        copy, unfinished = path.with_suffix(".copy"), path.with_suffix(".copy.tmp")
        with self._copying:
            unfinished.unlink(missing_ok=True)
            self._file.copy_to(str(unfinished))
            return unfinished.rename(copy)

    def close(self) -> None:
        """Write the offsets and give the file back."""
        try:
            self.flush_offsets()
        finally:
            self._file.close()

    def _forget_offsets(self, keys: Iterable[OffsetKey]) -> None:
        for key in list(keys):
            del self._offsets[key]
            self._unwritten.discard(key)
