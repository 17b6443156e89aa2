"""Decisions about the expiry of unused names.

The caller names a few candidates at a time; these functions decide which of them expire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.topic_names import OWN_PREFIXES
from escrowmq.transaction import expiry_commands
from escrowmq.transaction.commands import Decision, RemoveTopic
from escrowmq.transaction.decisions.cataloging import EXPIRED, remove_topic
from escrowmq.transaction.memory.uses import slack_ms
from escrowmq.transaction.records import GroupRemoved, NamesUsed, OriginsExpired, QueriesExpired

if TYPE_CHECKING:
    from escrowmq.transaction.core import Transactions
    from escrowmq.transaction.memory.catalog import KeptTopic

BY = "limits.unused_expire_ms"


def unused_since_ms(core: Transactions, now_ms: int) -> int:
    """A name whose last use is before this time may expire."""
    return now_ms - core.limits.unused_expire_ms


def expire_origins(
    core: Transactions, command: expiry_commands.ExpireOrigins, now_ms: int
) -> Decision:
    """Expire unused origins without a half message that is undecided or not yet visible."""
    origins, since_ms = core.names.origins, unused_since_ms(core, now_ms)
    unused = {number for number in command.numbers if origins.is_unused(number, since_ms)}
    if unused:
        unused -= core.table.origins_needed(unused)
    return Decision(records=(OriginsExpired(sorted(unused)),) if unused else ())


def expire_queries(
    core: Transactions, command: expiry_commands.ExpireQueries, now_ms: int
) -> Decision:
    """Expire queries of Spark sinks that decided nothing for ``unused_expire_ms``."""
    since_ms = unused_since_ms(core, now_ms)
    unused = [query for query in command.queries if core.batches.is_unused(*query, since_ms)]
    return Decision(records=(QueriesExpired(unused),) if unused else ())


def note_uses(core: Transactions, command: expiry_commands.NoteUses, now_ms: int) -> Decision:
    """Record uses of names whose last note is at least ``slack_ms`` old."""
    noted_before_ms = now_ms - slack_ms(core.limits)
    groups, topics = (
        [name for name in used if noted.get(name, now_ms) <= noted_before_ms]
        for used, noted in (
            (command.groups, core.uses.groups),
            (command.topics, core.uses.topics),
        )
    )
    return Decision(records=(NamesUsed(groups, topics),) if groups or topics else ())


def noted_since_ms(core: Transactions, now_ms: int) -> int:
    """A group or topic whose last note is before this time may expire."""
    return unused_since_ms(core, now_ms) - slack_ms(core.limits)


def expire_groups(
    core: Transactions, command: expiry_commands.ExpireGroups, now_ms: int
) -> Decision:
    """Expire unused consumer groups that no operator made."""
    since_ms = noted_since_ms(core, now_ms)
    known = core.catalog.groups
    return Decision(
        records=tuple(
            GroupRemoved(name, EXPIRED, BY)
            for name in command.names
            if name in known
            and known[name].is_made_by_use
            and core.uses.groups.get(name, now_ms) < since_ms
        )
    )


def expire_topic(core: Transactions, command: expiry_commands.ExpireTopic, now_ms: int) -> Decision:
    """Expire an unused topic that was made by use and is empty."""
    name = command.name
    kept = core.catalog.topics.get(name)
    since_ms = noted_since_ms(core, now_ms)
    if kept is None or not may_expire(kept) or core.uses.topics.get(name, now_ms) >= since_ms:
        return Decision()
    numbers = core.names.queues_of.get(name, {}).values()
    # A message that arrived meanwhile has advanced an end.
    if {number: core.queue_ends[number] for number in numbers} != command.queue_ends:
        return Decision()
    decision = remove_topic(core, RemoveTopic(name=name, by=BY, reason=EXPIRED), now_ms)
    # A topic with undecided or waiting messages stays.
    return Decision() if decision.refused is not None else decision


def may_expire(kept: KeptTopic) -> bool:
    """Whether a topic was made by use, or by the broker for itself."""
    return kept.is_made_by_use or kept.topic.name.startswith(OWN_PREFIXES)
