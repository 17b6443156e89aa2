"""The position of an audit: one offset of each broker's log, and how far back the log goes.

Everything is read up to the pin. Later records are not evidence, and neither is what retention has
deleted: the horizon.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from escrowmq.client.own_calls import OwnCalls
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_headers import LogRangeHeader, PagedHeader, StatusAnswer
from escrowmq.protocol.own_rows import HalfRow
from escrowmq.protocol.sights import sight_of

SOUGHT_BYTES = 1024 * 1024
"""A search by time narrows down to this many bytes of the log, which are then read."""


@dataclass(frozen=True, kw_only=True)
class QueueSpan:
    """A queue at the time of the pin."""

    topic: str
    queue_id: int
    start: int
    end: int
    #: Where its topic began in the log.
    born: int = 0


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One broker at one position of its log."""

    address: str
    status: StatusAnswer
    #: The log offsets to read, ``[start, end)``.
    log_start: int
    log_end: int
    #: The first half offset of that part of the log. Below it, only carried-forward or copied ones
    #: may be left.
    known_from: int
    #: When that half message was stored.
    known_from_ms: int
    #: Whether the caller limited the range; otherwise it is the whole log.
    is_cut: bool
    queues: tuple[QueueSpan, ...]

    @property
    def name(self) -> str:
        """The broker's own name."""
        return self.status.broker

    @property
    def is_whole(self) -> bool:
        """Whether the log is read from its very first record."""
        return not self.log_start and not self.is_cut


def take_pins(addresses: Sequence[str], *, since_ms: int = 0) -> list[Pin]:
    """Take each broker's position; ``since_ms`` leaves out what was stored before."""
    pins: dict[str, Pin] = {}
    for address in addresses:
        pin = _pin(address, since_ms)
        sight = sight_of(pin.status)
        # A broker may have two ports. Its data must not count twice.
        known = pins.setdefault(address if sight is None else sight.store_id, pin)
        if known is not pin:
            raise RequestRefused(
                "broker_named_twice",
                "give each broker once; two brokers have two names",
                broker=pin.status.broker,
                addresses=[known.address, address],
            )
    return list(pins.values())


def _pin(address: str, since_ms: int) -> Pin:
    with OwnCalls(address) as calls:
        # The position matches the queues' ends: everything visible was decided below it.
        queues, log_end = _queues(calls)
        status = calls.call(OwnCode.STATUS).header
        assert isinstance(status, StatusAnswer)
        log_start = status.log_start
        if since_ms:
            log_start = _first_since(calls, log_start, log_end, since_ms)
        first = _first_half(calls, log_start, log_end, lambda half: not half.is_copy)
    return Pin(
        address=address,
        status=status,
        log_start=log_start,
        log_end=log_end,
        known_from=status.half_end if first is None else first.first,
        known_from_ms=status.now_ms if first is None else first.stored_at_ms,
        is_cut=since_ms > 0,
        queues=queues,
    )


def _queues(calls: OwnCalls) -> tuple[tuple[QueueSpan, ...], int]:
    spans: list[QueueSpan] = []
    log_end = 0
    header: PagedHeader | None = None
    for answer in calls.pages(OwnCode.LIST_QUEUES, header):
        log_end = max(log_end, answer.header.log_end)
        spans += [
            QueueSpan(
                topic=row.topic,
                queue_id=row.queue_id,
                start=row.start,
                end=row.end,
                born=row.born,
            )
            for row in answer.rows
        ]
    return tuple(spans), log_end


def _first_half(
    calls: OwnCalls, start: int, end: int, is_wanted: Callable[[HalfRow], bool]
) -> HalfRow | None:
    """The first wanted half message in this part of the log."""
    header = LogRangeHeader(start=start, end=end)
    for answer in calls.pages(OwnCode.LIST_HALVES, header):
        for row in answer.rows:
            if is_wanted(row):
                found: HalfRow = row
                return found
    return None


def _first_since(calls: OwnCalls, start: int, end: int, since_ms: int) -> int:
    """The log offset from which everything was stored at this time or later."""
    high = end
    while high - start > SOUGHT_BYTES:
        middle = (start + high) // 2
        half = _first_half(calls, middle, high, lambda _: True)
        if half is None or half.stored_at_ms >= since_ms:
            high = middle
        else:
            start = half.log_offset + 1
    first = _first_half(calls, start, end, lambda half: half.stored_at_ms >= since_ms)
    return end if first is None else first.log_offset


def since(pins: Sequence[Pin], now: Sequence[Pin]) -> list[Pin]:
    """The parts of the logs that were added since the first pins."""
    return [
        replace(later, log_start=max(pin.log_end, later.log_start), is_cut=False)
        for pin, later in zip(pins, now, strict=True)
    ]


def offsets_option(offsets: dict[str, int]) -> str:
    """Offsets by broker name, as an option of the views."""
    return json.dumps(offsets)
