"""Which consumer groups there are, and how one comes to be.

A group that nobody made is made when it is first seen, as RocketMQ does, unless its operator
forbids that.  Groups of RocketMQ's own tools are always welcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.topics import RETRY_PREFIX, retry_topic
from escrowmq.broker.wanting import Wanted
from escrowmq.model.catalog import Group, Pause
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.limits import GROUP_TOPIC_CHARS_MAX, validate_topic
from escrowmq.transaction.commands import PutGroup

if TYPE_CHECKING:
    from escrowmq.broker.config import TopicsConfig
    from escrowmq.transaction.catalog import Catalog

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
_OF_TOOLS_PREFIX = "CID_RMQ_SYS_"


class Groups:
    """The owner's consumer groups."""

    def __init__(self, catalog: Catalog, config: TopicsConfig) -> None:
        self._catalog = catalog
        self._config = config
        #: By name, so that a pull looks it up once; ``note`` keeps it.
        self.paused: dict[str, Pause] = {}
        for kept in catalog.groups.values():
            self.note(kept.group)

    @property
    def are_made_by_use(self) -> bool:
        """Whether a group that does not exist is made when a member of it is seen."""
        return self._config.auto_create_groups

    def welcome(self, name: str) -> Group | None:
        """The group; ``Wanted`` first if it may be made, None if it may not."""
        group = self._catalog.group(name)
        if group is None and self._may_make(name):
            raise Wanted(PutGroup(group=Group(name=name), is_only_made=True))
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
        """The group, made if it may be; refused if it may not."""
        group = self.welcome(name)
        if group is None:
            raise _unknown(name)
        return group

    def to_read(self, name: str) -> Group:
        """The group of somebody who wants to read; made if it may be."""
        group = self.made(name)
        if not group.may_consume:
            raise RequestRefused("group_forbidden", "its owner forbids it", consumer_group=name)
        return group

    def named(self, name: str) -> Group:
        """The group; refused if it is not there."""
        group = self._catalog.group(name)
        if group is None:
            raise _unknown(name)
        return group

    def note(self, group: Group) -> None:
        """This group is durable as it is here."""
        if group.pause is None:
            self.paused.pop(group.name, None)
        else:
            self.paused[group.name] = group.pause

    def put(self, group: Group) -> PutGroup:
        """The command that makes the group, or changes it."""
        check_name(group.name)
        return PutGroup(group=group)


def check_name(name: str) -> None:
    """Refuse a group that could have no retry topic."""
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
        "group_unknown", "make the group, or send a heartbeat of it", consumer_group=name
    )


def is_of_tools(name: str) -> bool:
    """Whether RocketMQ's own tools read with this group."""
    return name in _OF_TOOLS or name.startswith(_OF_TOOLS_PREFIX)
