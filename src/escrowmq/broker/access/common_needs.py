"""What the tables of needs share: needs by topic and group, and what a request says to them.

Topics that the broker makes for a consumer group belong to the group: a client that consumes it
needs no grant for its retries and dead letters. Topics to which every client writes need none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from escrowmq.access.needs import Need, Needs, OneOf
from escrowmq.model.errors import RequestRefused
from escrowmq.model.sink_attempt import GROUP_PREFIX, OPENING_TOPIC
from escrowmq.model.topic_names import DEFAULT_TOPIC, GROUP_TOPIC_PREFIXES
from escrowmq.model.users import Action, ResourceKind
from escrowmq.protocol.message.message_views import SYSTEM_TOPICS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from escrowmq.broker.access.known_users import KnownUser
    from escrowmq.broker.access.stored_facts import StoredFacts

#: Topics to which clients write by themselves, such as traces.
OPEN_TOPICS = frozenset(("RMQ_SYS_TRACE_TOPIC", DEFAULT_TOPIC, OPENING_TOPIC))
_TRACES = "rmq_sys_TRACE_DATA_"
_USE = (Action.PUB, Action.SUB, Action.GET)


class Asker(msgspec.Struct, frozen=True, gc=False):
    """The user that sends a request, its connection, and what the tables look up for it."""

    known: KnownUser
    facts: StoredFacts
    #: The client's connection, and the id that it gave itself.
    link: object
    client_id: str = ""

    @property
    def user(self) -> str:
        """The user's name."""
        return self.known.name


def check_table(handled: Iterable[str | int], described: Collection[str | int]) -> None:
    """Refuse to start if a table lacks a request that has a handler: nothing would check it."""
    missing = sorted(map(str, set(handled).difference(described)))
    if missing:
        raise RequestRefused(
            "needs_missing", "write what each request needs into its table", requests=missing
        )


def need(action: Action, kind: ResourceKind, name: str = "") -> Needs:
    """Return one need."""
    return (Need(action, kind, name),)


def on_topic(action: Action, topic: str) -> Needs:
    """Return the needs of an action on a topic."""
    for prefix in GROUP_TOPIC_PREFIXES:
        if topic.startswith(prefix):
            group = topic.removeprefix(prefix)
            return on_group(Action.SUB if action in _USE else action, group)
    if topic in OPEN_TOPICS or topic.startswith(_TRACES):
        return () if action in (Action.PUB, Action.GET) else need(action, ResourceKind.TOPIC, topic)
    if topic in SYSTEM_TOPICS and action in _USE:
        # They show half messages and decisions of every user.
        return need(Action.AUDIT, ResourceKind.CLUSTER)
    return need(action, ResourceKind.TOPIC, topic)


def uses_topic(topic: str) -> Needs:
    """Return the needs of a question that senders and readers of a topic ask, such as a route."""
    ways = [on_topic(action, topic) for action in _USE]
    if not all(ways):
        return ()
    return (OneOf(tuple(dict.fromkeys(one for way in ways for one in way if type(one) is Need))),)


def on_group(action: Action, group: str) -> Needs:
    """Return the need of an action on a group."""
    return need(action, ResourceKind.GROUP, group)


def uses_group(group: str) -> Needs:
    """Return the need of a question that the members of a group and its watchers ask."""
    kind = ResourceKind.GROUP
    return (OneOf((Need(Action.SUB, kind, group), Need(Action.GET, kind, group))),)


def consumes(group: str, *topics: str) -> Needs:
    """Return the needs of a consumer."""
    return united(on_group(Action.SUB, group), *(on_topic(Action.SUB, topic) for topic in topics))


def on_cluster(action: Action) -> Needs:
    """Return the need of an action on the broker itself."""
    return need(action, ResourceKind.CLUSTER)


def united(*several: Needs) -> Needs:
    """Return all of these needs, each once."""
    return tuple(dict.fromkeys(one for needs in several for one in needs))


def decides(asker: Asker, half_offset: int, *, by_others: bool = False) -> Needs:
    """Return what a decision about a stored half message needs: nothing from the user that sent it.

    The group counts that is stored. The one in a request's header proves nothing.
    """
    origin = asker.facts.origin_of(half_offset)
    if origin is None:
        # There is nothing to decide, and the handler says so.
        return ()
    if origin.user and origin.user == asker.user:
        return ()
    kind = ResourceKind.GROUP
    if by_others:
        actions = (Action.PUB, Action.SETTLE)
        return (OneOf(tuple(Need(action, kind, origin.group) for action in actions)),)
    return need(Action.PUB, kind, origin.group)


def holds(group: str, *topics: str) -> Needs:
    """Return what half messages for these topics need.

    A stock client's group is no resource of its own: decisions belong to the user that sent. The
    group of a Spark sink stands for its app id, whose batches count as written or not.
    """
    sink = on_group(Action.PUB, group) if group.startswith(GROUP_PREFIX) else ()
    return united(*(on_topic(Action.PUB, topic) for topic in topics), sink)


def refuse_other_client(asker: Asker, group: str) -> Needs:
    """Return what a client needs to take or leave the place of a producer of another user."""
    if asker.facts.producer_user(group, asker.client_id) in ("", asker.user):
        return ()
    return on_group(Action.PUB, group)


def refuse_unless_super(asker: Asker) -> None:
    """Refuse a change of a super user by another user: it would give the rights to everything."""
    if not asker.known.is_super:
        raise RequestRefused(
            "not_allowed",
            "only a super user changes super users",
            user=asker.user,
            action=Action.UPDATE.value,
            resource="super users",
            policy="",
        )
