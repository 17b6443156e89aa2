"""The position of an audit: one offset of each broker's log, and how far back the log goes.

Everything is read up to the pin. Later records are not evidence, and neither is what retention has
deleted: the horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.native.headers import LogRangeHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import HalfRow, QueueRow
from escrowmq.protocol.native.sights import sight_of
from escrowmq.protocol.native.status_answer import StatusAnswer

SOUGHT_BYTES = 1024 * 1024
"""A search by time narrows down to this many bytes of the log, which are then read."""


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
    known_from_ms: int = 0
    #: Whether the caller limited the range; otherwise it is the whole log.
    is_cut: bool = False
    #: The queues at the time of the pin.
    queues: tuple[QueueRow, ...] = ()

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
    with NativeCalls(address) as calls:
        # The position matches the queues' ends: everything visible was decided below it.
        queues, log_end = _queues(calls)
        status = calls.call(NativeCode.STATUS).header
        assert isinstance(status, StatusAnswer)
        log_start = status.log_start
        if since_ms:
            log_start = _first_since(calls, log_start, log_end, since_ms)
        first = first_half(calls, log_start, log_end, lambda half: not half.is_copy)
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


def _queues(calls: NativeCalls) -> tuple[tuple[QueueRow, ...], int]:
    pages = list(calls.pages(NativeCode.LIST_QUEUES))
    log_end = max((page.header.log_end for page in pages), default=0)
    return tuple(row for page in pages for row in page.rows), log_end


def first_half(
    calls: NativeCalls, start: int, end: int, is_wanted: Callable[[HalfRow], bool]
) -> HalfRow | None:
    """The first wanted half message in this part of the log."""
    rows = calls.rows(NativeCode.LIST_HALVES, LogRangeHeader(start=start, end=end))
    return next(filter(is_wanted, rows), None)


def _first_since(calls: NativeCalls, start: int, end: int, since_ms: int) -> int:
    """The log offset from which everything was stored at this time or later."""
    high = end
    while high - start > SOUGHT_BYTES:
        middle = (start + high) // 2
        half = first_half(calls, middle, high, lambda _: True)
        if half is None or half.stored_at_ms >= since_ms:
            high = middle
        else:
            start = half.log_offset + 1
    first = first_half(calls, start, end, lambda half: half.stored_at_ms >= since_ms)
    return end if first is None else first.log_offset


def since(pins: Sequence[Pin], now: Sequence[Pin]) -> list[Pin]:
    """The parts of the logs that were added since the first pins."""
    return [
        replace(later, log_start=max(pin.log_end, later.log_start), is_cut=False)
        for pin, later in zip(pins, now, strict=True)
    ]
