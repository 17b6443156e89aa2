"""Builds the catalog that a broker starts with from the log and ``meta.db``.

The log wins. A store of a version before 3 has no topics in its log, so the topics of meta.db
become records once. Missing or damaged parts are made anew and reported; they never stop a start.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from escrowmq.model.catalog import Group, Topic
from escrowmq.model.errors import RequestRefused
from escrowmq.model.event_log import event_log
from escrowmq.protocol.message.limits import validate_topic
from escrowmq.store.meta.meta import Meta, MetaLimits
from escrowmq.store.meta.opening import MetaFound, open_meta
from escrowmq.store.store import Store
from escrowmq.transaction.commands import (
    Command,
    MarkCatalog,
    PutGroup,
    PutSetting,
    PutTopic,
    RemoveTopic,
)

log = event_log(__name__)

BY = "broker start"


class CatalogFound(msgspec.Struct, kw_only=True):
    """Report of what a start had to make anew."""

    #: Why consumer offsets may be lost; empty if they are not.
    offsets_lost: str = ""
    #: Path of a damaged meta.db that was set aside.
    aside: str = ""
    #: Topics that have queues but no record.
    topics_found: list[str] = []
    #: Whether topics and groups have just become log records.
    is_migrated: bool = False


def open_catalog(
    store: Store, path: Path, system_topics: Collection[str], now_ms: int
) -> tuple[Meta, CatalogFound]:
    """Bring the catalog and meta.db into agreement, before the broker serves clients."""
    limits = MetaLimits(offsets_max=store.core.limits.offsets_max)
    meta, found = open_meta(path, limits, is_known=store.meta_at >= 0)
    told = CatalogFound(aside=found.aside)
    try:
        if store.core.catalog.is_kept:
            _note_lost_offsets(store, meta, found, told, now_ms)
        else:
            _migrate(store, meta, found, told, now_ms)
        _find_topics(store, told, now_ms)
        # A restored meta.db may be newer than the log, because a backup copies it after the log.
        is_ahead = meta.standing > store.core.lineage.epochs[-1].log_offset
        if is_ahead:
            _take_groups(store, meta, now_ms)
        store.sync()
        meta.follow(store.catalog, system_topics, is_ahead=is_ahead)
    except BaseException:
        meta.close_file()
        raise
    return meta, told


def _do(store: Store, command: Command, now_ms: int) -> None:
    refused = store.execute(command, now_ms).refused
    if refused is not None:
        raise refused


def _note_lost_offsets(
    store: Store, meta: Meta, found: MetaFound, told: CatalogFound, now_ms: int
) -> None:
    why = found.loss
    if not why and meta.standing < store.meta_at:
        why = f"meta.db is a copy of log offset {meta.standing}, it was at {store.meta_at}"
    if not why:
        return
    told.offsets_lost = why
    log.error("meta_rebuilt", extra={"why": why, "aside": found.aside})
    _do(store, MarkCatalog(mark="offsets_lost", detail=why), now_ms)


def _migrate(store: Store, meta: Meta, found: MetaFound, told: CatalogFound, now_ms: int) -> None:
    """Write the contents of meta.db as records. After a crash, the next start repeats it."""
    core = store.core
    if found.loss and core.names.queues_of:
        told.offsets_lost = found.loss
        log.error("meta_rebuilt", extra={"why": found.loss, "aside": found.aside})
        _find_topics(store, told, now_ms)
    for topic in meta.stated_topics.values():
        _do(store, PutTopic(topic=topic.plain()), now_ms)
    for group in meta.stated_groups.values():
        # A group with default settings looks as if its first member had made it, so it may expire.
        is_plain = group.plain() == Group(name=group.name)
        _do(store, PutGroup(group=group.plain(), is_only_made=is_plain), now_ms)
    for setting in meta.stated_settings.values():
        _do(store, PutSetting(setting=setting), now_ms)
    # Queues without a topic belonged to deleted topics, which must not come back.
    for name in core.names.queues_of.keys() - core.catalog.topics.keys():
        _do(store, RemoveTopic(name=name, by=BY, is_forced=True), now_ms)
    _do(store, MarkCatalog(mark="kept"), now_ms)
    told.is_migrated = bool(meta.stated_topics or meta.stated_groups or meta.stated_settings)
    if told.is_migrated:
        log.info(
            "catalog_migrated",
            extra={"topics": len(meta.stated_topics), "groups": len(meta.stated_groups)},
        )


def _take_groups(store: Store, meta: Meta, now_ms: int) -> None:
    """Create the groups of a meta.db that is ahead of the log: offsets below the fork count."""
    for group in meta.stated_groups.values():
        _do(store, PutGroup(group=group.plain(), is_only_made=True), now_ms)


def _is_name(name: str) -> bool:
    try:
        validate_topic(name)
    except RequestRefused:
        return False
    return True


def _find_topics(store: Store, told: CatalogFound, now_ms: int) -> None:
    """Make topics that have queues but no record, which was lost with damaged bytes."""
    core = store.core
    for name in sorted(core.names.queues_of.keys() - core.catalog.topics.keys()):
        if not _is_name(name):
            # A repair gives a queue such a name if its real name is lost.
            continue
        count = max(core.names.queues_of[name]) + 1
        topic = Topic(
            name=name, read_queue_count=count, write_queue_count=count, created_at_ms=now_ms
        )
        log.error("topic_found", extra={"topic": name, "queues": count})
        told.topics_found.append(name)
        _do(store, PutTopic(topic=topic), now_ms)
