"""``meta.db``: how far consumers are, and a projection of topics, groups and settings.

Consumer offsets are here and nowhere else, and they are disposable: ``set_offset`` changes memory,
and what has changed is written every few seconds, in one transaction.  Offsets lost in a crash mean
redelivery, never loss.

Topics, groups and settings are log records (``transaction/catalog.py``).  The file follows them,
for people with an SQLite shell, and to tell which incarnation of a topic its offsets are of: an
offset counts only if its topic and its group began where the log says that they did.  So neither a
file that was not written before a crash, nor an old copy, nor one of another history can bring back
an offset that would skip messages.

One thread owns a ``Meta``; another one may ``write`` what it has taken, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from escrowmq.model.catalog import NUMBER_MAX, Group, MessageType, Name, Setting, Topic
from escrowmq.model.errors import RequestRefused
from escrowmq.store.meta_changes import Changes, OffsetKey, write_changes
from escrowmq.store.meta_file import MetaFile
from escrowmq.store.offset_index import OffsetIndex

if TYPE_CHECKING:
    from escrowmq.transaction.catalog import Catalog

__all__ = ["Group", "MessageType", "Meta", "MetaLimits", "OffsetKey", "Setting", "Topic"]

OFFSET_MAX = NUMBER_MAX
WRITTEN_MAX = 4_096
"""Rows that are taken and written at a time: a few milliseconds of the loop."""

TOPICS = "topics"
GROUPS = "groups"
SETTINGS = "settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaLimits:
    """How much may be kept; reaching one is a refusal of whatever would be new."""

    offsets_max: int = 1_000_000
    #: Of 4 KiB each: the file never grows beyond 1 GiB.
    pages_max: int = 262_144


DEFAULT_LIMITS = MetaLimits()


class _Offset(msgspec.Struct, frozen=True, array_like=True):
    consumer_group: Name
    topic: Name
    queue_id: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    queue_offset: Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]


class StatedTopic(Topic, frozen=True, kw_only=True):
    """A topic as the file states it."""

    #: The log offset at which it began; 0 in files of version 1.
    born: int = 0

    def plain(self) -> Topic:
        """The topic alone."""
        return Topic(**{name: getattr(self, name) for name in Topic.__struct_fields__})


class StatedGroup(Group, frozen=True, kw_only=True):
    """A consumer group as the file states it."""

    born: int = 0

    def plain(self) -> Group:
        """The group alone."""
        return Group(**{name: getattr(self, name) for name in Group.__struct_fields__})


Stated = TypeVar("Stated", StatedTopic, StatedGroup, Setting)


class Meta:
    """How far consumers are.

    ``offsets`` maps (consumer group, topic, queue id) to the offset of the next message and is for
    reading.  Opening raises StoreUnusable if the file cannot be used as it is, StoreCorrupt if it
    is damaged as a whole; single rows that make no sense are left out and counted.
    A write raises Unavailable("meta_full") if there is no room; nothing has changed then.
    """

    def __init__(self, path: str | Path, limits: MetaLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        #: Rows that were left out because they were damaged.
        self.bad_rows = 0
        #: What the file said when it was opened; a file of version 1 is the only place that knows.
        self.stated_topics: dict[str, StatedTopic] = {}
        self.stated_groups: dict[str, StatedGroup] = {}
        self.stated_settings: dict[str, Setting] = {}
        #: The log offset that the file stood at; -1 if it is new, or of version 1.
        self.standing = -1
        self._offsets: dict[OffsetKey, int] = {}
        self._unwritten: set[OffsetKey] = set()
        self._forgotten_topics: dict[str, None] = {}
        self._forgotten_groups: dict[str, None] = {}
        self._changed: dict[str, dict[str, None]] = {TOPICS: {}, GROUPS: {}, SETTINGS: {}}
        #: Whether all rows are to be written anew, to be rid of the damaged ones.
        self._is_anew = False
        #: Where the log's words are; ``follow`` sets it.
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
        self.stated_topics = {one.name: one for one in self._stated(TOPICS, StatedTopic)}
        self.stated_groups = {one.name: one for one in self._stated(GROUPS, StatedGroup)}
        self.stated_settings = {one.name: one for one in self._stated(SETTINGS, Setting)}
        for row in self._file.rows("standing", ("log_offset",)):
            if row is None or not isinstance(row[0], int):
                self.bad_rows += 1
            else:
                self.standing = row[0]
        for row in self._file.rows("offsets", _Offset.__struct_fields__):
            try:
                offset = msgspec.convert(row, _Offset)
            except msgspec.ValidationError:
                # It means redelivery, and is no reason not to start.
                self.bad_rows += 1
                continue
            key = (offset.consumer_group, offset.topic, offset.queue_id)
            self._offsets[key] = offset.queue_offset

    def _stated(self, table: str, kind: type[Stated]) -> Iterator[Stated]:
        for row in self._file.rows(table, ("name", "document")):
            try:
                yield msgspec.json.decode(str(row and row[1]), type=kind)
            except msgspec.DecodeError:
                self.bad_rows += 1

    # Topics, groups and settings.

    def follow(
        self, catalog: Catalog, always: Iterable[str] = (), *, is_ahead: bool = False
    ) -> int:
        """Go by what the log says; how many offsets were of what is not there any more.

        Topics that are ``always`` there are nobody's.  A file that is ahead of the log is of a
        history that is gone, in which groups may have begun elsewhere.  From here on whoever
        changes the catalog tells what has changed.
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
        stated: tuple[tuple[str, Mapping[str, object]], ...] = (
            (TOPICS, self.stated_topics),
            (GROUPS, self.stated_groups),
            (SETTINGS, self.stated_settings),
        )
        for table, was in stated:
            names = {*was, *self._names(table)}
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
            self._changed = {table: dict.fromkeys(self._names(table)) for table in self._changed}
        return len(stale)

    def _names(self, table: str) -> Iterable[str]:
        catalog = self._catalog
        assert catalog is not None
        tables: dict[str, Iterable[str]] = {
            TOPICS: catalog.topics,
            GROUPS: catalog.groups,
            SETTINGS: catalog.settings,
        }
        return tables[table]

    def _document(self, table: str, name: str) -> bytes | None:
        """What the file must say of it; None if it is not there."""
        catalog = self._catalog
        assert catalog is not None
        document: object = None
        if table == TOPICS:
            topic = catalog.topics.get(name)
            if topic is not None:
                document = StatedTopic(**_fields(topic.topic), born=topic.born)
        elif table == GROUPS:
            group = catalog.groups.get(name)
            if group is not None:
                document = StatedGroup(**_fields(group.group), born=group.born)
        else:
            document = catalog.settings.get(name)
        return None if document is None else msgspec.json.encode(document)

    def changed(self, table: str, name: str) -> None:
        """A topic, group or setting is not what it was."""
        self._changed[table][name] = None

    def forget_topic(self, name: str) -> None:
        """Forget how far everybody was in a topic that is gone."""
        self.changed(TOPICS, name)
        self._forgotten_topics[name] = None
        self._drop(self.index.taken(topic=name))

    def forget_group(self, name: str) -> None:
        """Forget how far a group was that is gone."""
        self.changed(GROUPS, name)
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
        """Note how far a group has come, and answer how far that is now.

        Acknowledgements may arrive out of order, so an offset only moves forward unless it is a
        ``reset``.  Nothing is written before ``flush``; who resets by hand should wait for it.
        Whether topic and group exist is for the caller to check.
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
        self.flush()
        return moved

    # Writing.

    def take(self, standing: int = -1, rows_max: int = WRITTEN_MAX) -> Changes:
        """What has changed, some of it; the log is told of up to ``standing``."""
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
        # In the order of the table, so that neighbors share a page while it is at hand.
        keys = sorted(self._unwritten.pop() for _ in range(count))
        changes.offsets = {key: self._offsets[key] for key in keys}
        if changes.count and is_told:
            changes.standing = max(standing, self.standing)
        return changes

    def write(self, changes: Changes) -> None:
        """Make it durable, all or none; in whichever thread, one at a time."""
        if changes.count:
            write_changes(self._file, changes)

    def written(self, changes: Changes) -> None:
        """It is durable."""
        self.standing = max(self.standing, changes.standing)

    def put_back(self, changes: Changes) -> None:
        """It could not be written: it is to be written with the next."""
        self._forgotten_topics = dict.fromkeys([*changes.forgotten_topics, *self._forgotten_topics])
        self._forgotten_groups = dict.fromkeys([*changes.forgotten_groups, *self._forgotten_groups])
        for table, documents in changes.documents.items():
            self._changed[table] |= dict.fromkeys(documents)
        self._unwritten |= changes.offsets.keys() & self._offsets.keys()
        self._is_anew = self._is_anew or changes.is_anew

    @property
    def is_behind(self) -> bool:
        """Whether there is something to be written."""
        forgotten = self._forgotten_topics or self._forgotten_groups
        return bool(self._unwritten or forgotten or any(self._changed.values()) or self._is_anew)

    def flush(self, standing: int = -1) -> int:
        """Write all that has changed, now and here; how many rows."""
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
        """Write everything, and a copy of it beside the file, for a backup; where that is."""
        self.flush(standing)
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
            self.copy_to(unfinished)
            return unfinished.rename(copy)

    def copy_to(self, path: Path) -> None:
        """Copy the file as it is, damaged rows too."""
        self._file.copy_to(str(path))

    def close(self, standing: int = -1) -> None:
        """Write what has changed and give the file back."""
        try:
            self.flush(standing)
        finally:
            self.close_file()

    def close_file(self) -> None:
        """Give the file back as it is."""
        self._file.close()


def _fields(document: Topic | Group) -> dict[str, Any]:
    return {name: getattr(document, name) for name in document.__struct_fields__}
