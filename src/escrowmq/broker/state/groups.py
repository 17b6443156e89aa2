"""Consumer groups, and how the broker creates them.

The broker creates an unknown group at its first use, as RocketMQ does, unless the operator forbids
that. It always creates groups of RocketMQ's own tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.state.create_first import CreateFirst
from escrowmq.broker.state.topics import retry_topic
from escrowmq.model.catalog import Group, Pause
from escrowmq.model.errors import RequestRefused
from escrowmq.model.topic_names import RETRY_PREFIX, SYSTEM_GROUP_PREFIX
from escrowmq.protocol.message.limits import GROUP_TOPIC_CHARS_MAX, validate_topic
from escrowmq.transaction.commands import PutGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.broker.config import TopicsConfig
    from escrowmq.transaction.memory.catalog import Catalog

NAME_CHARS_MAX = GROUP_TOPIC_CHARS_MAX - len(RETRY_PREFIX)
_OF_TOOLS = frozenset(
    {
        "TOOLS_CONSUMER",
        "SELF_TEST_C_GROUP",
        "FILTERSRV_CONSUMER",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
    }
)


class Groups:
    """Consumer groups of a broker."""

    def __init__(self, catalog: Catalog, config: TopicsConfig) -> None:
        self._catalog = catalog
        self._config = config
        #: Pauses by group name, for a quick lookup by pulls; ``note`` keeps them up to date.
        self.paused: dict[str, Pause] = {}
        for kept in catalog.groups.values():
            self.note(kept.group)

    def all(self) -> Iterator[Group]:
        """Yield every group."""
        return (kept.group for kept in self._catalog.groups.values())

    @property
    def are_made_by_use(self) -> bool:
        """Whether the first use of a group that does not exist creates it."""
        return self._config.auto_create_groups

    def welcome(self, name: str) -> Group | None:
        """Return the group; None if it may not be created. Raise ``CreateFirst`` to create it."""
        group = self._catalog.group(name)
        if group is None and self._may_make(name):
            raise CreateFirst(PutGroup(group=Group(name=name), is_only_made=True))
        return group

    def _may_make(self, name: str) -> bool:
        if not (self._config.auto_create_groups or is_of_tools(name)):
            return False
        try:
            check_name(name)
        except RequestRefused:
            return False
        return True

    def made(self, name: str) -> Group:
        """Return the group as ``welcome`` does, but refuse one that may not be created."""
        group = self.welcome(name)
        if group is None:
            raise _unknown(name)
        return group

    def to_read(self, name: str) -> Group:
        """Return the group of a reader as ``made`` does; refuse one that may not consume."""
        group = self.made(name)
        if not group.may_consume:
            raise RequestRefused(
                "group_forbidden", "the group's settings forbid reading", consumer_group=name
            )
        return group

    def named(self, name: str) -> Group:
        """Return the group; refuse one that does not exist."""
        group = self._catalog.group(name)
        if group is None:
            raise _unknown(name)
        return group

    def find(self, name: str) -> Group | None:
        """Return the group; None if it does not exist."""
        return self._catalog.group(name)

    def note(self, group: Group) -> None:
        """Note the durable state of a group."""
        if group.pause is None:
            self.paused.pop(group.name, None)
        else:
            self.paused[group.name] = group.pause

    def put(self, group: Group) -> PutGroup:
        """Return the command that creates or changes the group."""
        check_name(group.name)
        return PutGroup(group=group)


def check_name(name: str) -> None:
    """Refuse a group name for which no retry topic can exist."""
    try:
        validate_topic(retry_topic(name) if name else "")
    except RequestRefused:
        raise RequestRefused(
            "group_illegal",
            f"must have 1 to {NAME_CHARS_MAX} letters, digits, _ - % and |",
            consumer_group=name[:NAME_CHARS_MAX],
        ) from None


def _unknown(name: str) -> RequestRefused:
    return RequestRefused(
        "group_unknown", "create the group, or send a heartbeat for it", consumer_group=name
    )


def is_of_tools(name: str) -> bool:
    """Whether RocketMQ's own tools read with this group."""
    return name in _OF_TOOLS or name.startswith(SYSTEM_GROUP_PREFIX)
