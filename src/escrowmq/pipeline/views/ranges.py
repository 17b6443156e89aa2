"""Cuts a read of a view into ranges, on the driver, and reads a range in pages, in a task.

Reads can be repeated. If a connection breaks, it is reopened, and the page is requested again from
the last cursor, for a limited time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import msgspec
from pyspark.sql.datasource import InputPartition

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import RequestRefused, StoreCorrupt
from escrowmq.model.event_log import event_log
from escrowmq.model.lineage import Sight
from escrowmq.pipeline.options import refuse_twins
from escrowmq.pipeline.source.queues import patiently
from escrowmq.pipeline.views.facts import HEAD, TRANSACTION_ID
from escrowmq.pipeline.views.log_events import event_pages
from escrowmq.pipeline.views.options import EVENTS, ViewOptions
from escrowmq.protocol.native.comparisons import ListComparisonHeader
from escrowmq.protocol.native.frames import ArrowAnswer
from escrowmq.protocol.native.headers import (
    ListTransactionsHeader,
    LogRangeHeader,
    PlanHeader,
)
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.sights import sight_of

log = event_log(__name__)

#: Columns of transactions that the broker must read from its log.
_OF_LOG = frozenset((HEAD, TRANSACTION_ID))


@dataclass(frozen=True)
class LogRange(InputPartition):
    """One task's part: offsets of the broker with this address and name."""

    broker: str
    broker_name: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class BrokerExtent:
    """How far a broker's log and half messages reach."""

    address: str
    name: str
    log_start: int
    log_end: int
    half_end: int
    #: Its history; None if the broker reports none.
    sight: Sight | None


def standing(options: ViewOptions) -> list[BrokerExtent]:
    """Ask brokers how far they are.

    Two brokers of one name are refused: rows are identified by it.
    """
    found: list[BrokerExtent] = []
    for address in options.brokers:
        found.append(patiently(partial(_standing, address), options.patience_s))
        refuse_twins((one.name, one.address) for one in found)
    return found


def _standing(address: str) -> BrokerExtent:
    with NativeCalls(address) as calls:
        status = calls.call(NativeCode.STATUS).header
    return BrokerExtent(
        address=address,
        name=status.broker,
        log_start=status.log_start,
        log_end=status.log_end,
        half_end=status.half_end,
        sight=sight_of(status),
    )


# On the driver.


def plan(options: ViewOptions) -> list[LogRange]:
    """Ranges that cover the current data between the requested offsets."""
    ranges = []
    for broker in standing(options):
        if not options.view.has_ranges:
            ranges.append(LogRange(broker.address, broker.name, 0, 0))
            continue
        start, end = options.start.of(broker.name), options.end.of(broker.name)
        if start is None:
            start = broker.log_start if options.view.is_of_log else 0
        elif options.view.is_of_log:
            refuse_loss(options, broker.name, start, (broker.log_start, max(broker.log_end, start)))
        for low, high in _planned(options, broker):
            first, last = max(low, start), high if end is None else min(high, end)
            if first < last:
                ranges.append(LogRange(broker.address, broker.name, first, last))
    return ranges


def _planned(options: ViewOptions, broker: BrokerExtent) -> list[tuple[int, int]]:
    if options.view.is_of_log:
        return evenly(broker.log_start, broker.log_end, options.range_bytes)
    if not options.is_of_undecided:
        return evenly(0, broker.half_end, options.range_rows)
    # Undecided transactions are rare, and the broker knows where they are.
    header = PlanHeader(what="transactions", weight=options.range_rows)
    with NativeCalls(broker.address) as calls:
        rows = patiently(
            partial(calls.call, NativeCode.PLAN_RANGES, header), options.patience_s
        ).rows
    return [(row.start, row.end) for row in rows]


def evenly(start: int, end: int, size: int) -> list[tuple[int, int]]:
    """Return ranges of this size; the last one may be shorter."""
    return [(at, min(at + size, end)) for at in range(start, end, size)]


# In a task.


def pages(options: ViewOptions, part: LogRange, columns: list[str]) -> Iterator[ArrowAnswer]:
    """Yield the pages of a range. Each shows the broker at the time of its request."""
    header = _header(options, part, columns)
    at = part.start
    with NativeCalls(part.broker) as calls:
        if options.view.name == EVENTS:
            assert isinstance(header, LogRangeHeader)
            for at, answer in event_pages(calls, header, options.patience_s):
                there = (answer.header.log_start, answer.header.log_end)
                refuse_loss(options, part.broker_name, at, there)
                yield answer
            return
        while True:
            answer = patiently(
                partial(calls.call_arrow, options.view.code, header), options.patience_s
            )
            if options.view.is_of_log:
                there = (answer.header.log_start, answer.header.log_end)
                refuse_loss(options, part.broker_name, at, there)
                _refuse_damage(options, part, at, answer.header.unreadable_bytes)
            yield answer
            cursor = answer.header.cursor
            if cursor is None:
                return
            if options.view.is_of_log:
                at = int(cursor.partition("/")[0])
            header = msgspec.structs.replace(header, cursor=cursor)


def _header(
    options: ViewOptions, part: LogRange, columns: list[str]
) -> LogRangeHeader | ListTransactionsHeader | ListComparisonHeader:
    view = options.view
    # At least one column is needed to know the number of rows.
    told = view.rows.__struct_fields__
    wanted = {view.columns[name].field for name in columns}
    names = [name for name in told if name in wanted] or [told[0]]
    if not view.has_ranges:
        return ListComparisonHeader(columns=",".join(names))
    if view.is_of_log:
        return LogRangeHeader(start=part.start, end=part.end, columns=",".join(names))
    return ListTransactionsHeader(
        start=part.start,
        end=part.end,
        columns=",".join(names),
        states=",".join(options.states),
        with_ids=options.with_ids and not _OF_LOG.isdisjoint(names),
    )


def refuse_loss(options: ViewOptions, broker: str, at: int, there: tuple[int, int]) -> bool:
    """Return whether the data at `at` is gone. Raises unless `failOnDataLoss` is false."""
    log_start, log_end = there
    if log_start <= at <= log_end:
        return False
    if options.fails_on_data_loss:
        raise RequestRefused(
            "data_lost",
            "retention has deleted this part of the log, or the store was recreated; set "
            "failOnDataLoss=false to read the rest",
            broker=broker,
            start=at,
            log_start=log_start,
            log_end=log_end,
        )
    log.warning("data_lost", extra={"broker": broker, "start": at, "log_start": log_start})
    return True


def _refuse_damage(options: ViewOptions, part: LogRange, at: int, unreadable_bytes: int) -> None:
    """Raise for damaged data unless `failOnDataLoss` is false."""
    if unreadable_bytes and options.fails_on_data_loss:
        raise StoreCorrupt(
            "log_unreadable",
            "part of the log is damaged; set failOnDataLoss=false to skip it",
            broker=part.broker_name,
            log_offset=at,
            unreadable_bytes=unreadable_bytes,
        )
