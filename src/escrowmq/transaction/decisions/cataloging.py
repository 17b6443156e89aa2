"""Decisions that create, change and remove topics, consumer groups and settings.

The functions read the core and return a ``Decision``; none changes the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from escrowmq.model.catalog import DOCUMENT_BYTES_MAX, Document, Pause, Setting
from escrowmq.model.errors import RequestRefused
from escrowmq.model.users import User
from escrowmq.transaction.commands import (
    Cataloged,
    Decision,
    MarkCatalog,
    PutGroup,
    PutSetting,
    PutTopic,
    RemoveGroup,
    RemoveSetting,
    RemoveTopic,
)
from escrowmq.transaction.decisions.answers import refuse
from escrowmq.transaction.records import (
    CatalogMarked,
    GroupPut,
    GroupRemoved,
    SettingPut,
    TopicPut,
    TopicRemoved,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from escrowmq.transaction.core import Transactions
    from escrowmq.transaction.pause_command import PauseGroup

DocumentT = TypeVar("DocumentT", bound=Document | User)

LISTED_MAX = 20
"""Maximum number of undecided half messages listed when their topic cannot be deleted."""

EXPIRED: Literal["expired"] = "expired"


def put_topic(core: Transactions, command: PutTopic, _now_ms: int) -> Decision:
    """Create the topic as a new incarnation, or change it."""
    catalog, name = core.catalog, command.topic.name
    known = catalog.topics.get(name)
    if known is not None and command.is_only_made:
        return Decision(reply=Cataloged(is_changed=False))
    try:
        topic = checked(command.topic, catalog.topics, core.limits.topics_max, "topics")
    except RequestRefused as refused:
        return Decision(refused=refused)
    if known is not None:
        if known.topic == topic and not known.is_made_by_use:
            return Decision(reply=Cataloged(is_changed=False))
        record = TopicPut(topic, known.incarnation, known.is_remade)
    else:
        # Incarnations are numbered only once the log keeps topics.
        incarnation = catalog.incarnations_end if catalog.is_kept else 0
        record = TopicPut(topic, incarnation, catalog.removed.may_have(name), command.is_only_made)
    return Decision(records=(record,), reply=Cataloged(is_changed=True))


def remove_topic(core: Transactions, command: RemoveTopic, _now_ms: int) -> Decision:
    """Remove the topic and its queues; refused while messages are undecided, unless forced.

    A topic that expires must have no messages that wait for their time either.
    """
    known = core.catalog.topics.get(command.name)
    queues = sorted(core.names.queues_of.get(command.name, {}).values())
    if known is None and not queues:
        return Decision(reply=Cataloged(is_changed=False))
    held = core.table.held_in(queues, LISTED_MAX)
    undecided, waiting = sum(held.undecided.values()), sum(held.waiting.values())
    may_go = command.is_forced or not undecided
    if command.reason == EXPIRED:
        may_go = not (undecided or waiting)
    if not may_go:
        return refuse(
            "topic_undecided",
            "decide its transactions first, or delete it by force: then undecided transactions"
            " can only be rolled back",
            topic=command.name,
            undecided=undecided,
            waiting=waiting,
            half_offsets=held.rows,
        )
    record = TopicRemoved(
        name=command.name,
        incarnation=0 if known is None else known.incarnation,
        queues=queues,
        reason=command.reason,
        by=command.by,
        held=sorted(held.undecided.keys() | held.waiting.keys()),
    )
    return Decision(
        records=(record,), reply=Cataloged(is_changed=True, undecided=undecided, waiting=waiting)
    )


def put_group(core: Transactions, command: PutGroup, _now_ms: int) -> Decision:
    """Create the consumer group, or change it."""
    known = core.catalog.groups.get(command.group.name)
    if known is not None and command.is_only_made:
        return Decision(reply=Cataloged(is_changed=False))
    try:
        group = checked(command.group, core.catalog.groups, core.limits.groups_max, "groups")
    except RequestRefused as refused:
        return Decision(refused=refused)
    # Tools write a whole group without its pause, so this neither pauses nor resumes it.
    pause = None if known is None else known.group.pause
    group = msgspec.structs.replace(group, pause=pause)
    # An equal group that was made by use is written again, because it is now an operator's.
    if known is not None and known.group == group and not known.is_made_by_use:
        return Decision(reply=Cataloged(is_changed=False))
    record = GroupPut(group, command.is_only_made)
    return Decision(records=(record,), reply=Cataloged(is_changed=True))


def remove_group(core: Transactions, command: RemoveGroup, _now_ms: int) -> Decision:
    """Remove the consumer group and its offsets."""
    if command.name not in core.catalog.groups:
        return Decision(reply=Cataloged(is_changed=False))
    record = GroupRemoved(command.name, command.reason, command.by)
    return Decision(records=(record,), reply=Cataloged(is_changed=True))


def pause_group(core: Transactions, command: PauseGroup, now_ms: int) -> Decision:
    """Pause or resume a consumer group; a group that is paused already keeps its first pause."""
    known = core.catalog.groups.get(command.name)
    if known is None:
        return refuse(
            "group_unknown", "`escrowmq group list` shows all groups", consumer_group=command.name
        )
    if (known.group.pause is not None) == command.is_paused:
        return Decision(reply=Cataloged(is_changed=False))
    pause = None
    if command.is_paused:
        pause = Pause(by=command.by, reason=command.reason, at_ms=now_ms)
    try:
        group = msgspec.structs.replace(known.group, pause=pause)
        group = checked(group, core.catalog.groups, core.limits.groups_max, "groups")
    except RequestRefused as refused:
        return Decision(refused=refused)
    return Decision(records=(GroupPut(group),), reply=Cataloged(is_changed=True))


def put_setting(core: Transactions, command: PutSetting, _now_ms: int) -> Decision:
    """Set a value that a tool stores in the broker."""
    settings = core.catalog.settings
    try:
        setting = checked(command.setting, settings, core.limits.settings_max, "settings")
    except RequestRefused as refused:
        return Decision(refused=refused)
    if settings.get(setting.name) == setting:
        return Decision(reply=Cataloged(is_changed=False))
    return Decision(records=(SettingPut(setting),), reply=Cataloged(is_changed=True))


def remove_setting(core: Transactions, command: RemoveSetting, _now_ms: int) -> Decision:
    """Remove a value that a tool stored in the broker."""
    if command.name not in core.catalog.settings:
        return Decision(reply=Cataloged(is_changed=False))
    forgotten = SettingPut(Setting(name=command.name, value=None), is_removed=True)
    return Decision(records=(forgotten,), reply=Cataloged(is_changed=True))


def mark_catalog(_core: Transactions, command: MarkCatalog, _now_ms: int) -> Decision:
    """Record a mark about all topics and groups."""
    record = CatalogMarked(command.mark, command.detail)
    return Decision(records=(record,), reply=Cataloged(is_changed=True))


def checked(
    document: DocumentT, known: Mapping[str, object], known_max: int, table: str
) -> DocumentT:
    """Return the document as the next start will read it; RequestRefused if it breaks a limit."""
    kind = type(document)
    name, what = document.name, kind.__name__.lower()
    if name not in known and len(known) >= known_max:
        raise RequestRefused(f"{table}_limit", name=name, rows_max=known_max)
    try:
        encoded = msgspec.json.encode(document)
        # The decoder checks the limits of each field. The decoded document is kept: the next start
        # reads the same, and the caller cannot change it.
        found = msgspec.json.decode(encoded, type=kind)
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestRefused(f"bad_{what}", str(error), name=name) from error
    if len(encoded) > DOCUMENT_BYTES_MAX:
        raise RequestRefused(
            f"{what}_too_large", name=name, bytes=len(encoded), bytes_max=DOCUMENT_BYTES_MAX
        )
    return found
