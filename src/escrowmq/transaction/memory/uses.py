"""Times when consumer groups and topics were last used, to within ``slack_ms``.

A broker records each name in use at most once per ``slack_ms``, so that the log hardly grows. A
crash loses the uses since the last note: ``slack_ms`` allows for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import msgspec

from escrowmq.model.limits_config import DAY_MS
from escrowmq.transaction import records as kinds
from escrowmq.transaction.user_records import AccessWasOn, UserPut, UserRemoved

if TYPE_CHECKING:
    from collections.abc import Collection

    from escrowmq.model.limits_config import LimitsConfig
    from escrowmq.transaction.memory.catalog import Catalog

SLACK_PARTS = 10
"""Uses are noted this many times before a name can expire, and at least once a day."""


class SavedUses(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoint of ``NameUses``: store times by name."""

    groups: dict[str, int] = {}
    topics: dict[str, int] = {}


class NameUses:
    """The last noted use of every consumer group and topic of the catalog."""

    def __init__(self) -> None:
        self.groups: dict[str, int] = {}
        self.topics: dict[str, int] = {}

    def apply(
        self, record: kinds.CatalogRecord | kinds.NamesUsed, at_ms: int, catalog: Catalog
    ) -> None:
        """Apply a record that the catalog has applied already."""
        match record:
            case kinds.NamesUsed():
                _use(self.groups, record.groups, at_ms, catalog.groups)
                _use(self.topics, record.topics, at_ms, catalog.topics)
            case kinds.GroupPut():
                _use(self.groups, [record.group.name], at_ms, catalog.groups)
            case kinds.GroupRemoved():
                self.groups.pop(record.name, None)
            case kinds.TopicPut():
                _use(self.topics, [record.topic.name], at_ms, catalog.topics)
            case kinds.TopicRemoved():
                if record.name not in catalog.topics:
                    self.topics.pop(record.name, None)
            case kinds.SettingPut() | kinds.CatalogMarked():
                pass
            case UserPut() | UserRemoved() | AccessWasOn():
                # A user does not expire: only an admin takes access away.
                pass
            case _:
                assert_never(record)

    def saved(self) -> SavedUses:
        """Return the content for a checkpoint."""
        return SavedUses(groups=dict(self.groups), topics=dict(self.topics))

    def load(self, saved: SavedUses) -> None:
        """Load a checkpoint."""
        self.groups, self.topics = dict(saved.groups), dict(saved.topics)


def slack_ms(limits: LimitsConfig) -> int:
    """Return how much later than its last note a name may have been used."""
    return min(DAY_MS, limits.unused_expire_ms // SLACK_PARTS)


def _use(uses: dict[str, int], names: list[str], at_ms: int, known: Collection[str]) -> None:
    for name in names:
        if name in known:
            uses[name] = max(at_ms, uses.get(name, 0))
