"""How a read of a view is cut into ranges, on the driver, and a range read in pages, in a task.

Reads can be repeated: a connection that breaks is made anew, and the page asked for again from the
cursor that the last one gave, a limited number of times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec
from pyspark.sql.datasource import InputPartition

from escrowmq.client.own_calls import OwnCalls
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.pipeline.facts import TRANSACTION_ID
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_headers import (
    ListTransactionsHeader,
    LogRangeHeader,
    PagedHeader,
    PlanHeader,
)

if TYPE_CHECKING:
    from escrowmq.pipeline.view_options import ViewOptions
    from escrowmq.protocol.own_frames import ArrowAnswer

TRIES_MAX = 6
FIRST_WAIT_S = 0.1
"""Before the second try; each wait is twice the one before: all of them are about three seconds."""

T = TypeVar("T")


@dataclass(frozen=True)
class Range(InputPartition):
    """One task's part: these offsets of the broker with this address and name."""

    broker: str
    broker_name: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How far a broker is."""

    address: str
    name: str
    log_start: int
    log_end: int
    half_end: int


def standing(addresses: tuple[str, ...]) -> list[Standing]:
    """Ask brokers how far they are; two of one name are refused: identities are made of it."""
    found: dict[str, Standing] = {}
    for address in addresses:
        one = _standing(address)
        if one.name in found:
            raise RequestRefused(
                "broker_named_twice",
                "name each broker once, and give each a name of its own",
                broker=one.name,
                addresses=f"{found[one.name].address}, {address}",
            )
        found[one.name] = one
    return list(found.values())


def _standing(address: str) -> Standing:
    with OwnCalls(address) as calls:
        status = patiently(partial(calls.call, OwnCode.STATUS)).header
    return Standing(
        address=address,
        name=status.broker,
        log_start=status.log_start,
        log_end=status.log_end,
        half_end=status.half_end,
    )


def patiently(ask: Callable[[], T]) -> T:
    """Ask again, a few times, if the broker cannot be reached or has no time."""
    wait_s = FIRST_WAIT_S
    for _ in range(TRIES_MAX - 1):
        try:
            return ask()
        except Unavailable:
            time.sleep(wait_s)
            wait_s *= 2
    return ask()


# On the driver.


def plan(options: ViewOptions) -> list[Range]:
    """Ranges that cover what there is now, between the offsets that were asked for."""
    ranges = []
    for broker in standing(options.brokers):
        start, end = options.start.of(broker.name), options.end.of(broker.name)
        if start is None:
            start = broker.log_start if options.view.is_of_log else 0
        elif options.view.is_of_log:
            refuse_loss(options, broker.name, start, broker.log_start)
        for low, high in _planned(options, broker):
            first, last = max(low, start), high if end is None else min(high, end)
            if first < last:
                ranges.append(Range(broker.address, broker.name, first, last))
    return ranges


def _planned(options: ViewOptions, broker: Standing) -> list[tuple[int, int]]:
    if options.view.is_of_log:
        return evenly(broker.log_start, broker.log_end, options.range_bytes)
    if not options.is_of_undecided:
        return evenly(0, broker.half_end, options.range_rows)
    # They are few among all others: the broker knows where they are.
    header = PlanHeader(what="transactions", weight=options.range_rows)
    with OwnCalls(broker.address) as calls:
        rows = patiently(partial(calls.call, OwnCode.PLAN_RANGES, header)).rows
    return [(row.start, row.end) for row in rows]


def evenly(start: int, end: int, size: int) -> list[tuple[int, int]]:
    """Ranges of this size; the last is what is left."""
    return [(at, min(at + size, end)) for at in range(start, end, size)]


# In a task.


def pages(options: ViewOptions, part: Range, columns: list[str]) -> Iterator[ArrowAnswer]:
    """The pages of a range, each as the broker was when it was asked."""
    header = _header(options, part, columns)
    at = part.start
    with OwnCalls(part.broker) as calls:
        while True:
            answer = patiently(partial(calls.call_arrow, options.view.code, header))
            if options.view.is_of_log:
                refuse_loss(options, part.broker_name, at, answer.header.log_start)
            yield answer
            cursor = answer.header.cursor
            if cursor is None:
                return
            at = int(cursor.partition("/")[0])
            header = msgspec.structs.replace(header, cursor=cursor)


def _header(options: ViewOptions, part: Range, columns: list[str]) -> PagedHeader:
    if options.view.is_of_log:
        return LogRangeHeader(start=part.start, end=part.end)
    return ListTransactionsHeader(
        start=part.start,
        end=part.end,
        states=",".join(options.states),
        with_ids=options.with_ids and TRANSACTION_ID in columns,
    )


def refuse_loss(options: ViewOptions, broker: str, start: int, log_start: int) -> None:
    """Refuse to pass over what retention has deleted, unless that was allowed."""
    if start < log_start and options.fails_on_data_loss:
        raise RequestRefused(
            "data_lost",
            "retention has deleted what was to be read; failOnDataLoss=false passes over it",
            broker=broker,
            start=start,
            log_start=log_start,
        )
