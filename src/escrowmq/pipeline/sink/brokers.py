"""Finds the brokers of a write, and which of them decides, before anything is written.

The home of an app id is the broker that has decided its batches so far. Only the home knows which
batches were written, so another broker must not take over.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from escrowmq.model.errors import RequestRefused
from escrowmq.model.sink_attempt import GROUP_PREFIX
from escrowmq.pipeline.options import refuse_twins
from escrowmq.pipeline.sink.calls import SinkCalls
from escrowmq.pipeline.sink.topics import SinkTopics
from escrowmq.pipeline.sink.written import SinkBroker

BROKERS_MAX = 64


@dataclass(frozen=True, slots=True)
class SinkBrokers:
    """The brokers of a write."""

    #: The broker that decides.
    home: SinkBroker
    others: tuple[SinkBroker, ...] = ()
    #: The end of the home's log when it was asked; 0 for a write without an app id, which has no
    #: earlier runs.
    opened_at: int = 0

    @property
    def all(self) -> tuple[SinkBroker, ...]:
        """All brokers, home first."""
        return (self.home, *self.others)


class KnownApp(NamedTuple):
    """What a broker knows about an app id."""

    broker: SinkBroker
    #: Whether it has decided for the app id, or holds attempts that it would decide.
    is_home: bool
    #: Other brokers that decide about parts that it holds.
    homes: frozenset[str]
    log_end: int = 0


def find_brokers(
    addresses: Sequence[str], app_id: str | None, topic: str, timeout_ms: int
) -> SinkBrokers:
    """Ask all brokers.

    Without an app id every batch has a unique name, so any broker can be home. If a topic is given,
    all brokers must have it.
    """
    if len(addresses) == 1:
        return _alone(addresses[0], app_id, timeout_ms)
    with ExitStack() as opened:
        calls = [opened.enter_context(SinkCalls(one, timeout_ms)) for one in addresses]
        known = [_ask(one, one.name(), app_id) for one in calls]
        refuse_twins(one.broker for one in known)
        if topic:
            for one, about in zip(calls, known, strict=True):
                SinkTopics(one.topics, about.broker.name).queue_count(topic)
    home = known[0] if app_id is None else home_of(app_id, known)
    others = [one.broker for one in known if one.broker != home.broker]
    return SinkBrokers(home.broker, tuple(sorted(others)), home.log_end)


def _alone(address: str, app_id: str | None, timeout_ms: int) -> SinkBrokers:
    """The only broker of a write, whose name is not needed."""
    if app_id is None:
        return SinkBrokers(SinkBroker("", address))
    with SinkCalls(address, timeout_ms) as calls:
        home = home_of(app_id, [_ask(calls, "", app_id)])
    return SinkBrokers(home.broker, opened_at=home.log_end)


def _ask(calls: SinkCalls, name: str, app_id: str | None) -> KnownApp:
    broker = SinkBroker(name, calls.address)
    if app_id is None:
        return KnownApp(broker, is_home=False, homes=frozenset())
    return KnownApp(broker, *calls.standing(f"{GROUP_PREFIX}{app_id}"))


def home_of(app_id: str, known: Sequence[KnownApp]) -> KnownApp:
    """The broker that decides for this app id: the one that did so before, else the first."""
    homes = [one for one in known if one.is_home]
    if len(homes) > 1:
        raise RequestRefused(
            "app_id_at_two_brokers",
            "each of these brokers has decided batches of this app id; choose another app id",
            app_id=app_id,
            brokers=[one.broker.name for one in homes],
        )
    named = frozenset().union(*(one.homes for one in known))
    missing = named - {one.broker.name for one in known}
    if missing:
        raise RequestRefused(
            "home_broker_missing",
            "add this broker, which knows the batches that were written, or choose another app id",
            app_id=app_id,
            brokers=sorted(missing),
        )
    if named and not homes:
        # The home opens an attempt before any other broker holds a part of it.
        raise RequestRefused(
            "home_broker_set_back",
            "this broker was restored or recreated and does not know the app id; choose another",
            app_id=app_id,
            brokers=sorted(named),
        )
    return homes[0] if homes else known[0]
