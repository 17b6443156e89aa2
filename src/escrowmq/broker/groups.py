"""Which consumer groups there are, and how one comes to be.

A group that nobody made is made when it is first seen, as RocketMQ does, unless its operator
forbids that.  Groups of RocketMQ's own tools are always welcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.topics import RETRY_PREFIX, retry_topic
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.limits import GROUP_TOPIC_CHARS_MAX, validate_topic
from escrowmq.store.meta import Group

if TYPE_CHECKING:
    from escrowmq.broker.config import TopicsConfig
    from escrowmq.store.meta import Meta

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

    def __init__(self, meta: Meta, config: TopicsConfig) -> None:
        self._meta = meta
        self._config = config

    def welcome(self, name: str) -> Group | None:
        """The group, made if it may be; None if it is not there and may not be made."""
        group = self._meta.groups.get(name)
        if group is None and self._may_make(name):
            group = self.put(Group(name=name))
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
        group = self._meta.groups.get(name)
        if group is None:
            raise _unknown(name)
        return group

    def put(self, group: Group) -> Group:
        """Make the group, or change it."""
        check_name(group.name)
        self._meta.put_group(group)
        return group


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
