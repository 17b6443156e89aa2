"""The catalog: all topics, consumer groups, settings and users that the log knows.

Like the transactions, it changes only by ``apply``. There are two catalogs: the core's, against
which commands are decided, and the durable one, which all other parts read.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from escrowmq.model.catalog import Group, Setting, Topic
from escrowmq.model.users import User
from escrowmq.transaction.memory.expired_names import ExpiredNames
from escrowmq.transaction.records import (
    CatalogMarked,
    CatalogRecord,
    GroupPut,
    GroupRemoved,
    SettingPut,
    TopicPut,
    TopicRemoved,
)
from escrowmq.transaction.user_records import AccessWasOn, UserPut, UserRemoved

EXPIRED = "expired"
KEPT = "kept"


class KeptTopic(msgspec.Struct, frozen=True):
    """A topic, and where in the log it was created."""

    topic: Topic
    incarnation: int
    #: Log offset of the frame that created it; 0 if that was before the log kept topics.
    born: int
    is_remade: bool = False
    #: A message or a consumer made it, and no operator has changed it since.
    is_made_by_use: bool = False


class KeptGroup(msgspec.Struct, frozen=True):
    """A consumer group, and where in the log it was created."""

    group: Group
    #: Log offset of the frame that created it; 0 if that was before the log kept groups.
    born: int
    #: A member made it, and no operator has changed it since.
    is_made_by_use: bool = False


class KeptUser(msgspec.Struct, frozen=True):
    """A user, and the version of its last change."""

    user: User
    version: int


class SavedCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoint of the catalog."""

    is_kept: bool = False
    incarnations_end: int = 1
    offsets_lost_at: int = -1
    topics: list[KeptTopic] = []
    groups: list[KeptGroup] = []
    settings: list[Setting] = []
    removed_names: bytes = b""
    expired_group_names: bytes = b""
    users: list[KeptUser] = []
    user_versions_end: int = 1
    was_access_on: bool = False


class Catalog:
    """Topics, consumer groups, settings and users, by name."""

    def __init__(self) -> None:
        #: Whether the log has the whole catalog; a store without a broker has none.
        self.is_kept = False
        #: Incarnation of the next topic that is created.
        self.incarnations_end = 1
        #: Groups created before this log offset may have lost their offsets; -1 if none has.
        self.offsets_lost_at = -1
        self.topics: dict[str, KeptTopic] = {}
        self.groups: dict[str, KeptGroup] = {}
        self.settings: dict[str, Setting] = {}
        self.users: dict[str, KeptUser] = {}
        #: Version of the next change of any user.
        self.user_versions_end = 1
        #: By access key, and by subject of a client certificate: the name of its user.
        self.access_keys: dict[str, str] = {}
        self.certificates: dict[str, str] = {}
        #: Whether access control was ever on; a broker without users then admits nobody.
        self.was_access_on = False
        #: Names of all topics ever deleted: if one is created again, old consumers may still come.
        self.removed = ExpiredNames()
        #: Names of expired groups: a group that returns has lost its offsets.
        self.expired_groups = ExpiredNames()

    def topic(self, name: str) -> Topic | None:
        """The topic, or None if it does not exist."""
        kept = self.topics.get(name)
        return None if kept is None else kept.topic

    def group(self, name: str) -> Group | None:
        """The consumer group, or None if it does not exist."""
        kept = self.groups.get(name)
        return None if kept is None else kept.group

    def has_lost_offsets(self, group: str) -> bool:
        """Whether this group may have consumed further than its known offsets."""
        kept = self.groups.get(group)
        if kept is not None and kept.born < self.offsets_lost_at:
            return True
        return self.expired_groups.may_have(group)

    def apply(self, record: CatalogRecord, frame: int) -> None:  # noqa: C901, PLR0912 - one case per record
        """Apply a record. Applying it again changes nothing."""
        match record:
            case TopicPut():
                self._put_topic(record, frame)
            case TopicRemoved():
                self._remove_topic(record)
            case GroupPut():
                known = self.groups.get(record.group.name)
                born = frame if self.is_kept else 0
                if known is not None:
                    born = known.born
                self.groups[record.group.name] = KeptGroup(
                    record.group, born, record.is_made_by_use
                )
            case GroupRemoved():
                self._remove_group(record)
            case UserPut():
                self._put_user(record)
            case UserRemoved():
                self._remove_user(record.name)
            case AccessWasOn():
                self.was_access_on = True
            case SettingPut():
                if record.is_removed:
                    self.settings.pop(record.setting.name, None)
                else:
                    self.settings[record.setting.name] = record.setting
            case CatalogMarked(mark=mark):
                if mark == KEPT:
                    self.is_kept = True
                else:
                    self.offsets_lost_at = frame
            case _:
                assert_never(record)

    def _put_topic(self, record: TopicPut, frame: int) -> None:
        name = record.topic.name
        known = self.topics.get(name)
        if known is not None and known.incarnation > record.incarnation:
            return
        born = frame if record.incarnation else 0
        if known is not None and known.incarnation == record.incarnation:
            born = known.born
        self.topics[name] = KeptTopic(
            record.topic, record.incarnation, born, record.is_remade, record.is_made_by_use
        )
        self.skip_incarnation(record.incarnation)

    def skip_incarnation(self, incarnation: int) -> None:
        """Mark a number as used, even if damage destroyed the record that used it first."""
        self.incarnations_end = max(self.incarnations_end, incarnation + 1)

    def _remove_topic(self, record: TopicRemoved) -> None:
        known = self.topics.get(record.name)
        if known is not None and known.incarnation > record.incarnation:
            return
        self.topics.pop(record.name, None)
        self.removed.add(record.name)

    def _remove_group(self, record: GroupRemoved) -> None:
        self.groups.pop(record.name, None)
        if record.reason == EXPIRED:
            self.expired_groups.add(record.name)

    def _put_user(self, record: UserPut) -> None:
        known = self.users.get(record.user.name)
        if known is None or known.version <= record.version:
            self._remove_user(record.user.name)
            self._add_user(KeptUser(record.user, record.version))
            self.user_versions_end = max(self.user_versions_end, record.version + 1)

    def _add_user(self, kept: KeptUser) -> None:
        self.users[kept.user.name] = kept
        self.access_keys[kept.user.access_key] = kept.user.name
        for subject in kept.user.certificate_names:
            self.certificates[subject] = kept.user.name

    def _remove_user(self, name: str) -> None:
        known = self.users.pop(name, None)
        if known is None:
            return
        # A replay on a later state may find the access key with another user.
        if self.access_keys.get(known.user.access_key) == name:
            del self.access_keys[known.user.access_key]
        for subject in known.user.certificate_names:
            if self.certificates.get(subject) == name:
                del self.certificates[subject]

    def saved(self) -> SavedCatalog:
        """Return the content for a checkpoint."""
        return SavedCatalog(
            is_kept=self.is_kept,
            incarnations_end=self.incarnations_end,
            offsets_lost_at=self.offsets_lost_at,
            topics=list(self.topics.values()),
            groups=list(self.groups.values()),
            settings=list(self.settings.values()),
            removed_names=self.removed.saved(),
            expired_group_names=self.expired_groups.saved(),
            users=list(self.users.values()),
            user_versions_end=self.user_versions_end,
            was_access_on=self.was_access_on,
        )

    def load(self, saved: SavedCatalog) -> None:
        """Load a checkpoint."""
        self.is_kept = saved.is_kept
        self.incarnations_end = saved.incarnations_end
        self.offsets_lost_at = saved.offsets_lost_at
        self.topics = {kept.topic.name: kept for kept in saved.topics}
        self.groups = {kept.group.name: kept for kept in saved.groups}
        self.settings = {setting.name: setting for setting in saved.settings}
        self.removed.load(saved.removed_names)
        self.expired_groups.load(saved.expired_group_names)
        self.users, self.access_keys, self.certificates = {}, {}, {}
        for kept in saved.users:
            self._add_user(kept)
        self.user_versions_end = saved.user_versions_end
        self.was_access_on = saved.was_access_on
