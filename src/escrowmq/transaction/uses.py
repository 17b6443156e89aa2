"""When consumer groups and topics were last used, to the day.

A broker notes the names that were used, at most once a day each, so that the log hardly grows.
What was used since the last note is lost in a crash: ``slack_ms`` allows for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from escrowmq.model.limits_config import DAY_MS
from escrowmq.transaction.records import GroupPut, NamesUsed, TopicPut

if TYPE_CHECKING:
    from collections.abc import Collection

    from escrowmq.model.limits_config import LimitsConfig
    from escrowmq.transaction.catalog import Catalog
    from escrowmq.transaction.records import CatalogRecord

SLACK_PARTS = 10
"""Uses are noted so many times before a name can expire, and at least once a day."""


class SavedUses(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, for a checkpoint: store times by name."""

    groups: dict[str, int] = {}
    topics: dict[str, int] = {}


class NameUses:
    """The last noted use of every consumer group and topic of the catalog."""

    def __init__(self) -> None:
        self.groups: dict[str, int] = {}
        self.topics: dict[str, int] = {}

    def apply(self, record: CatalogRecord | NamesUsed, at_ms: int, catalog: Catalog) -> None:
        """Follow the catalog, to which the record was applied before."""
        if isinstance(record, NamesUsed):
            _use(self.groups, record.groups, at_ms, catalog.groups)
            _use(self.topics, record.topics, at_ms, catalog.topics)
        elif isinstance(record, GroupPut):
            _use(self.groups, [record.group.name], at_ms, catalog.groups)
        elif isinstance(record, TopicPut):
            _use(self.topics, [record.topic.name], at_ms, catalog.topics)

    def forget(self, *, group: str = "", topic: str = "") -> None:
        """A name is gone."""
        self.groups.pop(group, None)
        self.topics.pop(topic, None)

    def saved(self) -> SavedUses:
        """All of it, frozen."""
        return SavedUses(groups=dict(self.groups), topics=dict(self.topics))

    def load(self, saved: SavedUses) -> None:
        """Be as it was."""
        self.groups, self.topics = dict(saved.groups), dict(saved.topics)


def slack_ms(limits: LimitsConfig) -> int:
    """A use may be so much later than it was noted."""
    return min(DAY_MS, limits.unused_expire_ms // SLACK_PARTS)


def _use(uses: dict[str, int], names: list[str], at_ms: int, known: Collection[str]) -> None:
    for name in names:
        if name in known:
            uses[name] = max(at_ms, uses.get(name, 0))
