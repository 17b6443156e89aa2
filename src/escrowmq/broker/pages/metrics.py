"""The page ``/metrics``: counters, and values that are looked up for each scrape.

The page is made in slices, so that it does not delay requests. Concurrent scrapes share one page.
"""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from itertools import tee
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from escrowmq.broker.native.status import OUR_RELEASE, BrokerStatus, StatusParts, status
from escrowmq.broker.net.http import PageContent
from escrowmq.broker.pages import metric_table as table
from escrowmq.broker.pages.exposition import CONTENT_TYPE, Exposition, Metric, Sample
from escrowmq.broker.pages.process_facts import process_facts
from escrowmq.broker.pages.state_store_metrics import state_store_metrics
from escrowmq.broker.state.client_links import ClientDialect
from escrowmq.broker.state.consumer_lag import Readers, is_system, lags
from escrowmq.broker.state.counting import LONG_POLL, ONE_WAY, parts_of
from escrowmq.model.catalog import READ, READ_WRITE
from escrowmq.model.topic_names import GROUP_TOPIC_PREFIXES
from escrowmq.protocol.grpc.enums import GrpcCode
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.client_bodies import CONSUME_TYPES
from escrowmq.protocol.remoting.codes import (
    LANGUAGES,
    UNKNOWN_LANGUAGE,
    RequestCode,
    ResponseCode,
    version_name,
)
from escrowmq.store.disk.space import RoomLevel
from escrowmq.store.retention.retirement import Waits
from escrowmq.store.table.undecided import held_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from escrowmq.broker.state.client_links import ClientLink
    from escrowmq.broker.state.clients import Client
    from escrowmq.broker.state.expiring import Expiring
    from escrowmq.broker.write.writer import Writer

SLICE_S = 0.002
"""Time that a slice may hold the event loop."""
SLICE_LINES = 32
"""Lines between two checks of the clock."""

_REMOTING = "remoting"
_GRPC = "grpc_v2"
_LOCAL_DISK = ("local", "disk")
_REQUESTS = {int(code): code.name.lower() for code in (*RequestCode, *NativeCode)}
_RESPONSES = {int(code): code.name.lower() for code in ResponseCode}
_GRPC_CODES = {int(code): code.name.lower() for code in GrpcCode}
_CONSUME_MODES = dict(zip(CONSUME_TYPES, ("pull", "push", "pop"), strict=True))

Family = tuple["Metric", "Iterable[Sample]"]
Families = dict["Metric", "Sequence[Sample]"]


class Measured(StatusParts, Readers, Protocol):
    """Parts of a broker that its metrics show."""

    writer: Writer
    expiring: Expiring


class MetricsPage:
    """The page of one server; ``broker`` returns None until the store has recovered."""

    def __init__(self, broker: Callable[[], Measured | None], *, cluster: str, name: str) -> None:
        self._broker = broker
        self._common = {
            "rocketmq": dict(zip(table.COMMON_LABELS, (cluster, "broker", name), strict=True))
        }
        self._making: asyncio.Task[PageContent] | None = None
        #: How long the last page took, in seconds.
        self._seconds = 0.0

    async def __call__(self) -> PageContent:
        """Return the page, or join the one that is being made."""
        if self._making is None:
            self._making = asyncio.ensure_future(self._make())
            self._making.add_done_callback(self._made)
        # A client that disconnects must not cancel the page for the others.
        return await asyncio.shield(self._making)

    def _made(self, _making: asyncio.Task[PageContent]) -> None:
        self._making = None

    async def _make(self) -> PageContent:
        began = perf_counter()
        page = Exposition(self._common)
        parts: list[bytes] = []
        lines: list[str] = []
        until = began + SLICE_S
        for line in self._lines(page):
            lines.append(line)
            if len(lines) >= SLICE_LINES:
                parts.append(_text(lines))
                lines.clear()
                if perf_counter() > until:
                    await asyncio.sleep(0)
                    until = perf_counter() + SLICE_S
        self._seconds = perf_counter() - began
        return PageContent(body=b"".join((*parts, _text(lines))), content_type=CONTENT_TYPE)

    def _lines(self, page: Exposition) -> Iterator[str]:
        for metric, samples in self._families():
            yield from page.lines(metric, samples)
        left_out = [((name,), count) for name, count in page.left_out.items()]
        yield from page.lines(table.LEFT_OUT, left_out)

    def _families(self) -> Iterator[Family]:
        broker = self._broker()
        yield table.BUILD, [((OUR_RELEASE, platform.python_version()), 1)]
        yield table.SCRAPE, one(self._seconds)
        for metric, value in process_facts().items():
            yield metric, one(value)
        if broker is None:
            yield table.IS_READY, one(0)
            return
        told = status(broker)
        for part in (_of_state, _of_transactions, _of_store):
            yield from part(broker, told).items()
        yield from _of_requests(broker, told)
        yield from _of_topics(broker)
        yield from _of_clients(broker)
        yield from _of_lags(broker)


def _text(lines: list[str]) -> bytes:
    # Client strings may be invalid UTF-8.
    return "".join(f"{line}\n" for line in lines).encode(errors="replace")


def one(value: float) -> list[Sample]:
    """Return the only sample of a metric without labels."""
    return [((), value)]


def _each(names: tuple[str, ...], values: tuple[float, ...]) -> list[Sample]:
    return [((name,), value) for name, value in zip(names, values, strict=True)]


def _by(counts: Mapping[str, int]) -> list[Sample]:
    return [((name,), counts[name]) for name in sorted(counts)]


def _truth(is_so: bool) -> str:  # noqa: FBT001 - the value is only formatted
    return "true" if is_so else "false"


# Each function has the metrics of one part of the broker.


def _of_state(broker: Measured, told: BrokerStatus) -> Families:
    waiting, failed = broker.writer.waiting, told.background_failed
    permission = READ_WRITE if told.disk == RoomLevel.ALL.name.lower() else READ
    away_ms = told.now_ms - told.pipeline_away_since_ms if told.pipeline_away_since_ms else 0
    lanes = (waiting.messages, waiting.decisions, waiting.questions)
    firing = [name for name in told.alerts_firing.split(",") if name]
    return {
        table.IS_READY: one(int(told.is_ready)),
        table.UPTIME: one(told.uptime_ms / 1_000),
        table.STARTED: one(told.started_at_ms / 1_000),
        table.PERMISSION: one(permission if told.is_ready else 0),
        table.WATERMARK: _each(("send", "transaction", "query_message"), lanes),
        table.INBOX: _each(("messages", "decisions", "questions"), lanes),
        table.INBOX_BYTES: one(waiting.bytes),
        table.BACKGROUND: [((work.work,), work.failures) for work in failed],
        table.BACKGROUND_NOW: [((work.work,), work.failures_in_a_row) for work in failed],
        table.PIPELINE_AWAY: one(away_ms / 1_000),
        table.LAST_VERDICT: one(told.last_verdict_at_ms / 1_000),
        table.CLOCK_GAP: one(told.clock_gap_ms / 1_000),
        table.CLOCK_DOUBTFUL: one(int(told.is_clock_doubtful)),
        table.CLOCK_SYNCHRONIZED: one(int(told.is_clock_synchronized)),
        table.DELETION_WAITS: one(int(bool(told.deletion_waits))),
        table.ALERTS_FIRING: [((name,), 1) for name in firing],
        table.ALERT_NOTICES: _each(
            ("dropped", "failed", "sent"),
            (told.alerts_dropped, told.alerts_failed, told.alerts_sent),
        ),
        table.BACKUP_LAST_GOOD: one(told.backup_last_good_at_ms / 1_000),
        table.BACKUP_FAILURES: one(told.backup_failures_in_a_row),
        table.BACKUP_OVERDUE: one(told.backup_overdue_ms / 1_000),
    }


def _of_transactions(broker: Measured, told: BrokerStatus) -> Families:
    counts = broker.counts
    reported = {(row.name, row.uuid): row for row in told.ledgers if row.name}
    reached = [(labels, int(row.is_reachable)) for labels, row in reported.items()]
    succeeded = [(labels, (row.succeeded_at_ms or 0) / 1_000) for labels, row in reported.items()]
    return {
        table.UNDECIDED: one(told.undecided),
        table.OLDEST: one(told.oldest_undecided_age_ms / 1_000),
        table.UNREACHABLE: one(told.undecided_without_producer),
        table.LEDGER_UNDECIDED: one(told.undecided_without_ledger),
        table.COMPARED: one(told.compared_at_ms / 1_000),
        table.COMPARED_DIFFERENCES: one(told.compared_differences),
        table.COMPARED_OPEN: one(told.compared_open),
        table.COMPARED_BEHIND: one(max(told.log_flushed - told.compared_log_offset, 0)),
        table.LEDGER_REACHABLE: reached,
        table.LEDGER_SUCCEEDED: succeeded,
        table.PARKED: one(told.parked),
        table.PARKED_TOTAL: one(counts.parked),
        table.DROPPED_TOTAL: one(broker.store.dropped),
        table.RESUMED_TOTAL: one(counts.resumed),
        table.DECISIONS: sorted(counts.decisions.items()),
        table.CONTRADICTIONS: one(told.contradictions),
        table.CHECKS: one(broker.checking.asked_count),
        table.ANSWERS: _by(counts.answers),
        table.VERDICTS: _by(counts.verdicts),
        **_of_checks(broker, told),
    }


def _of_checks(broker: Measured, told: BrokerStatus) -> Families:
    rounds, ended_at_ms = broker.rounds, told.round_ended_at_ms
    checkers = type(broker.leadership.checker)
    return {
        table.CHECKER: [((who.value,), int(who.value == told.checker)) for who in checkers],
        table.ROUNDS: _each(("failed", "succeeded"), (rounds.failed, rounds.succeeded)),
        table.ROUND_AGE: one((told.now_ms - ended_at_ms) / 1_000 if ended_at_ms else 0),
        table.ROUND_SECONDS: one(told.round_took_ms / 1_000),
        table.ROUND_OUTCOMES: _by(rounds.outcomes),
        table.CHECKS_STALLED: one(told.checks_stalled_ms / 1_000),
    }


def _of_store(broker: Measured, told: BrokerStatus) -> Families:
    store, found, retaining = broker.store, broker.vitals.found, broker.retaining
    oldest_at_ms = store.log.segments[0].first_at_ms if store.log.segments else 0
    age_ms = [(_LOCAL_DISK, max(told.now_ms - oldest_at_ms, 0))]
    return {
        table.STORAGE: [(_LOCAL_DISK, told.log_end - told.log_start)],
        table.FLUSH_BEHIND: [(_LOCAL_DISK, told.log_end - told.log_flushed)],
        **({table.RESERVE_MS: age_ms} if oldest_at_ms else {}),
        table.FLUSHES: [((), broker.writer.flush_times)],
        table.RECOVERY: one(found.recovery_s),
        table.REPLAYED: one(store.recovered_at - found.store.replayed_from),
        table.CUT: one(found.store.cut_bytes),
        table.DISK_FREE: one(told.disk_free_bytes),
        table.DISK_LEVEL: one(int(store.space.level)),
        table.DISK_RESERVE: one(told.disk_reserve_bytes),
        table.RETENTION_WAITS: [((str(why),), int(why == retaining.waits)) for why in Waits if why],
        table.RETENTION_MISSING: one(told.retention_missing_bytes),
        table.RETENTION_SEGMENTS: one(retaining.segments_removed),
        table.RETENTION_CARRIED: one(retaining.carried),
        **state_store_metrics(told),
        table.UNDECIDED_BYTES: one(told.undecided_bytes),
        table.RETENTION_BYTES: one(told.retention_bytes),
    }


def _of_requests(broker: Measured, told: BrokerStatus) -> Iterator[Family]:
    rpcs, limits = broker.counts.rpcs, broker.vitals.limits
    yield table.CONNECTIONS, one(told.connections)
    yield table.PULLS, one(told.pulls_waiting)
    yield table.POPS, one(told.pops_waiting)
    yield table.POP_IN_FLIGHT, one(told.pop_in_flight)
    yield table.REDELIVERED, sorted(broker.popping.redelivered.items())
    yield table.LIMITS, _by(told.limits_reached)
    held = {"waiting": limits.waiting.bytes, "unread": limits.unread.bytes}
    yield table.CONNECTION_BYTES, _by(held)
    grpc_rpcs = broker.counts.grpc_rpcs
    yield table.REFUSALS, _by(rpcs.refused + grpc_rpcs.refused)
    answered: Counter[tuple[str, str]] = Counter()
    samples: list[Sample] = []
    for protocol, requests, responses, counted in (
        (_REMOTING, _REQUESTS, _RESPONSES, rpcs),
        (_GRPC, grpc_rpcs.names, _GRPC_CODES, grpc_rpcs),
    ):
        for key, latency in sorted(counted.latencies.items()):
            code, response, flags = parts_of(key)
            request = requests.get(code, "unknown")
            outcome = responses.get(response, str(response))
            answered[request, outcome] += sum(latency.counts)
            result = "oneway" if flags & ONE_WAY else "success"
            waited = _truth(bool(flags & LONG_POLL))
            samples.append(((protocol, request, outcome, waited, result), latency))
    yield table.REQUESTS, sorted(answered.items())
    yield table.RPC_MS, samples


def _of_topics(broker: Measured) -> Iterator[Family]:
    counts = broker.counts
    yield table.TOPICS, one(sum(1 for _ in broker.topics.all()))
    yield table.GROUPS, one(len(broker.store.catalog.groups))
    yield table.GROUPS_PAUSED, one(len(broker.groups.paused))
    yield table.NAMES, [((one.kind,), one.used) for one in broker.capacities.all()]
    yield table.NAMES_MAX, [((one.kind,), one.max) for one in broker.capacities.all()]
    yield table.EXPIRED, _by(broker.expiring.counts)
    topics = sorted(counts.topics.items())
    # RocketMQ does not count messages in and out of the topics of groups.
    sizes = [
        ((topic, kind, _truth(is_system(topic))), size)
        for topic, of_topic in topics
        if not topic.startswith(GROUP_TOPIC_PREFIXES)
        for kind, size in of_topic.sizes.items()
    ]
    yield table.MESSAGES_IN, ((labels, sum(size.counts)) for labels, size in sizes)
    yield table.BYTES_IN, ((labels, int(size.total)) for labels, size in sizes)
    yield table.MESSAGE_SIZE, sizes
    outs = [
        ((topic, group, _truth(is_system(topic, group))), out)
        for (group, topic), out in counts.out.items()
        if not topic.startswith(GROUP_TOPIC_PREFIXES)
    ]
    yield table.MESSAGES_OUT, ((labels, out.messages) for labels, out in outs)
    yield table.BYTES_OUT, ((labels, out.bytes) for labels, out in outs)
    yield (
        table.DEAD,
        [
            ((group, topic, _truth(is_system(topic, group))), count)
            for (group, topic), count in counts.dead.items()
        ],
    )
    held = held_back(broker.store.table)
    yield table.HALVES, _by(_by_topic(broker, held.undecided))
    yield table.TIMED, _by(_by_topic(broker, held.timed))
    decided = [((topic,), of_topic) for topic, of_topic in topics]
    yield table.COMMITTED, ((key, one.committed) for key, one in decided if one.committed)
    yield table.ROLLED_BACK, ((key, one.rolled_back) for key, one in decided if one.rolled_back)
    yield table.FINISH, ((key, one.finished) for key, one in decided if one.finished)


def _by_topic(broker: Measured, by_queue: Mapping[int, int]) -> Counter[str]:
    """Add up the counts of all queues of a topic."""
    found: Counter[str] = Counter()
    for number, count in by_queue.items():
        found[broker.store.core.names.named(number).topic] += count
    return found


def _of_clients(broker: Measured) -> Iterator[Family]:
    clients = broker.clients
    producers: Counter[tuple[str, ...]] = Counter()
    for group in clients.producer_groups():
        for client in clients.producers(group):
            labels = _program(client)
            producers[*labels, _protocol(client)] += 1
    yield table.PRODUCERS, sorted(producers.items())
    consumers: Counter[tuple[str, ...]] = Counter()
    for online in clients.online_groups():
        name = online.said.group
        mode = _CONSUME_MODES.get(online.said.consume_type, "other")
        for client in online.members.values():
            labels = _program(client)
            system = _truth(is_system("", name))
            consumers[name, *labels, mode, _protocol(client), system] += 1
    yield table.CONSUMERS, sorted(consumers.items())


def _protocol(client: Client[ClientLink]) -> str:
    return _GRPC if client.dialect is ClientDialect.GRPC else _REMOTING


def _program(client: Client[ClientLink]) -> tuple[str, str]:
    language = client.language if client.language in LANGUAGES else UNKNOWN_LANGUAGE
    return language.lower(), version_name(client.version).lower()


def _of_lags(broker: Measured) -> Iterator[Family]:
    now_ms = broker.clock.now_ms()
    # The lags are computed while the first metric is written; the other metrics reuse them.
    several = iter(
        tee(
            (
                (
                    (
                        lag.group,
                        lag.topic,
                        _truth(lag.is_retry),
                        _truth(is_system(lag.topic, lag.group)),
                    ),
                    lag,
                )
                for lag in lags(broker)
            ),
            5,
        )
    )
    yield table.LAG, ((labels, lag.messages) for labels, lag in next(several))
    yield table.LAG_MS, ((labels, _age(lag.since_ms, now_ms)) for labels, lag in next(several))
    yield table.IN_FLIGHT, ((labels, lag.in_flight) for labels, lag in next(several))
    yield table.READY, ((labels, lag.ready) for labels, lag in next(several))
    yield (
        table.QUEUEING_MS,
        ((labels, _age(lag.ready_since_ms, now_ms)) for labels, lag in next(several)),
    )


def _age(since_ms: int, now_ms: int) -> int:
    return max(now_ms - since_ms, 0) if since_ms else 0
