"""``meta.db``: consumer offsets, and a projection of topics, groups and settings.

Consumer offsets are stored only here, and they are disposable: ``set_offset`` changes memory, and
changes are written every few seconds, up to 4,096 rows per transaction. Offsets lost in a crash
mean redelivery, never loss.

Topics, groups and settings are log records (``transaction/memory/catalog.py``). The file follows
them, for people with an SQLite shell, and to tell which incarnation of a topic its offsets belong
to. An offset counts only if its topic and its group began where the log says they did. So a file
that was not written before a crash, an old copy, and a file of another history cannot bring back an
offset that would skip messages.

One thread owns a ``Meta``. Other threads may ``write`` the changes it took, one write at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import msgspec

from escrowmq.model.catalog import NUMBER_MAX, Group, MessageType, Name, Setting, Topic
from escrowmq.model.errors import RequestRefused
from escrowmq.store.meta.changes import CatalogTable, Changes, OffsetKey, write_changes
from escrowmq.store.meta.offset_index import OffsetIndex
from escrowmq.store.meta.sqlite_file import MetaFile
from escrowmq.transaction.memory.catalog import Catalog, KeptGroup, KeptTopic

__all__ = ["Group", "MessageType", "Meta", "MetaLimits", "OffsetKey", "Setting", "Topic"]

OFFSET_MAX = NUMBER_MAX
WRITTEN_MAX = 4_096
"""Rows that are taken and written at a time: a few milliseconds of the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaLimits:
    """Limits of the file; at a limit, new entries are refused."""

    offsets_max: int = 1_000_000
    #: Pages of 4 KiB: the file never grows beyond 1 GiB.
    pages_max: int = 262_144


DEFAULT_LIMITS = MetaLimits()


class _Offset(msgspec.Struct, frozen=True, array_like=True):
    consumer_group: Name
    topic: Name
    queue_id: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    queue_offset: Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]


class StatedTopic(Topic, frozen=True, kw_only=True):
    """A topic as the file stores it."""

    #: The log offset at which it began; 0 in files of version 1.
    born: int = 0

    def plain(self) -> Topic:
        """Return the topic without ``born``."""
        return Topic(**{name: getattr(self, name) for name in Topic.__struct_fields__})


class StatedGroup(Group, frozen=True, kw_only=True):
    """A consumer group as the file stores it."""

    born: int = 0

    def plain(self) -> Group:
        """Return the group without ``born``."""
        return Group(**{name: getattr(self, name) for name in Group.__struct_fields__})


Stated = TypeVar("Stated", StatedTopic, StatedGroup, Setting)


class Meta:
    """Consumer offsets in memory, and the file that holds them.

    ``offsets`` is a read-only map of (consumer group, topic, queue id) to the offset of the next
    message. Opening raises StoreUnusable if the file cannot be used as it is, and StoreCorrupt if
    it is damaged as a whole. Single damaged rows are left out and counted. A write raises
    Unavailable("meta_full") if there is no room; nothing has changed then.
    """

    def __init__(self, path: str | Path, limits: MetaLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        #: Rows that were left out because they were damaged.
        self.bad_rows = 0
        #: The file's contents when it was opened. In version 1 the log did not have them.
        self.stated_topics: dict[str, StatedTopic] = {}
        self.stated_groups: dict[str, StatedGroup] = {}
        self.stated_settings: dict[str, Setting] = {}
        #: The log offset up to which the file follows the log; -1 if new, or of version 1.
        self.standing = -1
        self._offsets: dict[OffsetKey, int] = {}
        self._unwritten: set[OffsetKey] = set()
        self._forgotten_topics: dict[str, None] = {}
        self._forgotten_groups: dict[str, None] = {}
        self._changed: dict[CatalogTable, dict[str, None]] = {
            "topics": {},
            "groups": {},
            "settings": {},
        }
        #: Whether to rewrite all rows, to get rid of damaged ones.
        self._is_anew = False
        #: The catalog according to the log; ``follow`` sets it.
        self._catalog: Catalog | None = None
        self._file = MetaFile(str(path), limits.pages_max)
        self._copying = Lock()
        try:
            self._load()
        except BaseException:
            self._file.close()
            raise
        self.offsets: Mapping[OffsetKey, int] = MappingProxyType(self._offsets)
        self.index = OffsetIndex(self._offsets)

    def _load(self) -> None:
        self.stated_topics = {one.name: one for one in self._stated("topics", StatedTopic)}
        self.stated_groups = {one.name: one for one in self._stated("groups", StatedGroup)}
        self.stated_settings = {one.name: one for one in self._stated("settings", Setting)}
        for row in self._file.rows("standing", ("log_offset",)):
            if row is None or not isinstance(row[0], int):
                self.bad_rows += 1
            else:
                self.standing = row[0]
        for row in self._file.rows("offsets", _Offset.__struct_fields__):
            try:
                offset = msgspec.convert(row, _Offset)
            except msgspec.ValidationError:
                # A lost offset only means redelivery, so the broker starts anyway.
                self.bad_rows += 1
                continue
            key = (offset.consumer_group, offset.topic, offset.queue_id)
            self._offsets[key] = offset.queue_offset

    def _stated(self, table: CatalogTable, kind: type[Stated]) -> Iterator[Stated]:
        for row in self._file.rows(table, ("name", "document")):
            try:
                yield msgspec.json.decode(str(row and row[1]), type=kind)
            except msgspec.DecodeError:
                self.bad_rows += 1

    # Topics, groups and settings.

    def follow(
        self, catalog: Catalog, always: Iterable[str] = (), *, is_ahead: bool = False
    ) -> int:
        """Drop offsets of topics and groups that the log no longer has; return how many.

        Topics in ``always`` have no record in the log and always exist. A file that is ahead of the
        log belongs to a lost history, in which groups may have begun at other log offsets, so only
        their names are compared. From here on, the code that changes the catalog calls ``changed``.
        """
        self._catalog = catalog
        topics = {
            name
            for name, kept in catalog.topics.items()
            if name in self.stated_topics and self.stated_topics[name].born == kept.born
        }
        topics.update(always)
        groups = {
            name
            for name, kept in catalog.groups.items()
            if name in self.stated_groups
            and (is_ahead or self.stated_groups[name].born == kept.born)
        }
        stale = [key for key in self._offsets if key[0] not in groups or key[1] not in topics]
        self._forgotten_topics = dict.fromkeys({key[1] for key in stale} - topics)
        self._forgotten_groups = dict.fromkeys({key[0] for key in stale} - groups)
        self._drop(stale)
        stated: tuple[tuple[CatalogTable, Mapping[str, object]], ...] = (
            ("topics", self.stated_topics),
            ("groups", self.stated_groups),
            ("settings", self.stated_settings),
        )
        for table, was in stated:
            names = {*was, *self._kept(table)}
            self._changed[table] = {
                name: None
                for name in names
                if (document := self._document(table, name)) is None
                or name not in was
                or document != msgspec.json.encode(was[name])
            }
        if self.bad_rows:
            self._is_anew = True
            self._unwritten = set(self._offsets)
            self._changed = {table: dict.fromkeys(self._kept(table)) for table in self._changed}
        return len(stale)

    def _kept(self, table: CatalogTable) -> Mapping[str, object]:
        catalog = self._catalog
        assert catalog is not None
        tables: dict[CatalogTable, Mapping[str, object]] = {
            "topics": catalog.topics,
            "groups": catalog.groups,
            "settings": catalog.settings,
        }
        return tables[table]

    def _document(self, table: CatalogTable, name: str) -> bytes | None:
        """Return the document that the file must hold; None if there is none."""
        document = self._kept(table).get(name)
        if isinstance(document, KeptTopic):
            document = StatedTopic(**_fields(document.topic), born=document.born)
        elif isinstance(document, KeptGroup):
            document = StatedGroup(**_fields(document.group), born=document.born)
        return None if document is None else msgspec.json.encode(document)

    def changed(self, table: CatalogTable, name: str) -> None:
        """Mark a topic, group or setting as changed."""
        self._changed[table][name] = None

    def forget_topic(self, name: str) -> None:
        """Drop all offsets in a deleted topic."""
        self.changed("topics", name)
        self._forgotten_topics[name] = None
        self._drop(self.index.taken(topic=name))

    def forget_group(self, name: str) -> None:
        """Drop all offsets of a deleted group."""
        self.changed("groups", name)
        self._forgotten_groups[name] = None
        self._drop(self.index.taken(group=name))

    def _drop(self, keys: Iterable[OffsetKey]) -> None:
        for key in keys:
            del self._offsets[key]
            self._unwritten.discard(key)

    # Offsets.

    def set_offset(
        self, group: str, topic: str, queue_id: int, offset: int, *, reset: bool = False
    ) -> int:
        """Set a group's offset in a queue, and return the resulting offset.

        Acknowledgements may arrive out of order, so an offset only moves forward unless ``reset``
        is set. Nothing is written before ``flush``; a manual reset should wait for it. The caller
        checks that topic and group exist.
        """
        key = (group, topic, queue_id)
        known = self._offsets.get(key)
        if known is None:
            self._check_offset(key, offset)
            self.index.add(key)
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

    def clamp_offsets(self, ends: Mapping[tuple[str, int], tuple[int, int]]) -> int:
        """Move every offset into its queue's [start, end], durably; return how many moved.

        ``ends`` names every existing queue, as (topic, queue id). A queue that is not in it is
        empty, so its consumers begin at 0. The changes are written at once: if an offset beyond the
        end came back after a second crash, it would skip messages that were written in between.
        """
        moved = 0
        for key, offset in self._offsets.items():
            start, end = ends.get(key[1:], (0, 0))
            clamped = min(max(offset, start), end)
            if clamped != offset:
                self._offsets[key] = clamped
                self._unwritten.add(key)
                moved += 1
        self.flush()
        return moved

    # Writing.

    def take(self, standing: int = -1, rows_max: int = WRITTEN_MAX) -> Changes:
        """Take about ``rows_max`` changes; add ``standing`` if no change of the catalog is left."""
        changes = Changes(
            forgotten_topics=list(self._forgotten_topics),
            forgotten_groups=list(self._forgotten_groups),
            is_anew=self._is_anew,
        )
        self._forgotten_topics, self._forgotten_groups = {}, {}
        self._is_anew = False
        for table, names in self._changed.items():
            taken = list(islice(names, max(rows_max - changes.count, 0)))
            changes.documents[table] = {name: self._document(table, name) for name in taken}
            for name in taken:
                del names[name]
        is_told = not any(self._changed.values())
        count = min(len(self._unwritten), max(rows_max - changes.count, 0))
        # In table order, so that neighboring rows share a page while it is cached.
        keys = sorted(self._unwritten.pop() for _ in range(count))
        changes.offsets = {key: self._offsets[key] for key in keys}
        if changes.count and is_told:
            changes.standing = max(standing, self.standing)
        return changes

    def write(self, changes: Changes) -> None:
        """Make the changes durable, all or none. Any thread may call this, one at a time."""
        if changes.count:
            write_changes(self._file, changes)

    def written(self, changes: Changes) -> None:
        """Note that these changes are durable."""
        self.standing = max(self.standing, changes.standing)

    def put_back(self, changes: Changes) -> None:
        """Take back changes that could not be written, for the next write."""
        self._forgotten_topics = dict.fromkeys([*changes.forgotten_topics, *self._forgotten_topics])
        self._forgotten_groups = dict.fromkeys([*changes.forgotten_groups, *self._forgotten_groups])
        for table, documents in changes.documents.items():
            self._changed[table] |= dict.fromkeys(documents)
        self._unwritten |= changes.offsets.keys() & self._offsets.keys()
        self._is_anew = self._is_anew or changes.is_anew

    @property
    def is_behind(self) -> bool:
        """Whether there are unwritten changes."""
        forgotten = self._forgotten_topics or self._forgotten_groups
        return bool(self._unwritten or forgotten or any(self._changed.values()) or self._is_anew)

    def flush(self, standing: int = -1) -> int:
        """Write all changes now, in this thread; return how many."""
        count = 0
        while self.is_behind:
            changes = self.take(standing)
            try:
                self.write(changes)
            except BaseException:
                self.put_back(changes)
                raise
            self.written(changes)
            count += changes.count
        return count

    def copy(self, standing: int = -1) -> Path:
        """Write all changes, then a copy of the file beside it for a backup; return its path."""
        self.flush(standing)
        return self.copy_file()

    def copy_file(self) -> Path:
        """Write a copy of the file beside it; any thread may call this.

        Other processes cannot read the file itself, because it is locked. A process that has an
        older copy open keeps that copy.
        """
        path = Path(self._file.path)
        copy, unfinished = path.with_suffix(".copy"), path.with_suffix(".copy.tmp")
        with self._copying:
            unfinished.unlink(missing_ok=True)
            self.copy_to(unfinished)
            return unfinished.rename(copy)

    def copy_to(self, path: Path) -> None:
        """Copy the file as it is, including damaged rows."""
        self._file.copy_to(str(path))

    def close(self, standing: int = -1) -> None:
        """Write all changes and close the file."""
        try:
            self.flush(standing)
        finally:
            self.close_file()

    def close_file(self) -> None:
        """Close the file without writing."""
        self._file.close()


def _fields(document: Topic | Group) -> dict[str, Any]:
    return {name: getattr(document, name) for name in document.__struct_fields__}
