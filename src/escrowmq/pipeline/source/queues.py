"""Requests to brokers about their queues. Runs on the driver."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.model.lineage import Sight
from escrowmq.model.topic_names import OWN_PREFIXES
from escrowmq.pipeline.options import refuse_twins
from escrowmq.pipeline.source.offsets import OffsetRange, QueueKey
from escrowmq.protocol.native.headers import ListQueuesHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.sights import sight_of

log = event_log(__name__)

FIRST_WAIT_S = 0.1
WAIT_S_MAX = 2.0
RESTARTED = "the broker restarted during this request; try again"
REMADE = "the topic was recreated during this request; try again"

T = TypeVar("T")


class TopicSelection(NamedTuple):
    """A selection of topics, by name or by a pattern for the whole name."""

    names: tuple[str, ...]
    pattern: str

    def chosen(self, there: Iterable[str]) -> set[str]:
        """The selected topics that exist.

        A pattern skips internal topics unless it contains a ``%``.
        """
        if self.names:
            return set(self.names).intersection(there)
        matches = re.compile(self.pattern).fullmatch
        plain = (name for name in there if "%" in self.pattern or not name.startswith(OWN_PREFIXES))
        return set(filter(matches, plain))


class KnownBrokers(NamedTuple):
    """Brokers and their queues."""

    #: Addresses by broker name.
    addresses: dict[str, str]
    spans: dict[QueueKey, OffsetRange]
    #: The histories that the offsets belong to, by broker name. Older brokers report none.
    sights: dict[str, Sight]
    #: Where each topic began in its broker's log, by broker and topic name.
    born: dict[tuple[str, str], int]

    def unknown(self, topics: TopicSelection) -> tuple[str, ...]:
        """The names that no broker has, or the pattern if it matches no topic."""
        there = {key.topic for key in self.spans}
        if topics.names:
            return tuple(name for name in topics.names if name not in there)
        return () if there else (topics.pattern,)


def patiently(ask: Callable[[], T], patience_s: float) -> T:
    """Retry while the broker is unavailable, for up to `patience_s`."""
    until = time.monotonic() + patience_s
    wait_s = FIRST_WAIT_S
    while True:
        try:
            return ask()
        except Unavailable as away:
            if time.monotonic() + wait_s > until:
                raise
            log.warning("broker_awaited", extra={"cause": str(away)})
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, WAIT_S_MAX)


def known(
    addresses: Iterable[str],
    topics: TopicSelection,
    patience_s: float,
    *,
    from_ms: int = -1,
    until_ms: int = -1,
    until_log: int = -1,
) -> KnownBrokers:
    """Queues of these topics, with each broker's offsets taken at one position of its log.

    With times, only offsets that became visible between them. With a log offset, only offsets that
    were visible there.
    """
    found = KnownBrokers({}, {}, {}, {})
    asked = ListQueuesHeader(
        topic=",".join(topics.names), from_ms=from_ms, until_ms=until_ms, until_log=until_log
    )
    for address in addresses:
        told = patiently(partial(_of_broker, address, topics, asked), patience_s)
        name, spans, born, sight = told
        refuse_twins([*found.addresses.items(), (name, address)])
        found.addresses[name] = address
        found.spans.update(spans)
        found.born.update(born)
        if sight is not None:
            found.sights[name] = sight
    return found


def _of_broker(
    address: str, topics: TopicSelection, asked: ListQueuesHeader
) -> tuple[str, dict[QueueKey, OffsetRange], dict[tuple[str, str], int], Sight | None]:
    spans = {}
    born: dict[tuple[str, str], int] = {}
    with NativeCalls(address) as calls:
        told = calls.call(NativeCode.STATUS).header
        name, sight = told.broker, sight_of(told)
        there = {row.topic for row in calls.rows(NativeCode.LIST_TOPICS) if not row.is_system}
        chosen = topics.chosen(there)
        for page in calls.pages(NativeCode.LIST_QUEUES, asked):
            if page.header.epoch != told.epoch:
                raise Unavailable("broker_restarted", RESTARTED, broker=name)
            for row in page.rows:
                if row.topic in chosen:
                    spans[QueueKey(name, row.topic, row.queue_id)] = OffsetRange(row.start, row.end)
                    if born.setdefault((name, row.topic), row.born) != row.born:
                        raise Unavailable("topic_remade", REMADE, topic=row.topic)
            if sight is not None:
                # Everything that was visible is below this end.
                log_end = max(sight.log_end, page.header.log_end)
                sight = Sight(sight.lineage, log_end, sight.half_end)
    return name, spans, born, sight
