"""Readings of the machine's clocks, and the store time with which a store starts.

Time is an argument: the owner of a loop reads a ``Clock`` and passes the number down. A broker does
not trust the wall clock: ``broker/write/store_time.py`` derives store time from these readings.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

GAP_MS = 60_000
"""Store time follows the wall clock without confirmation while they are closer than this."""

READS_MAX = 3
SAME_MOMENT_NS = 100_000_000


class ClockReading(NamedTuple):
    """Readings of the clocks at one moment."""

    wall_ms: int
    boot_ms: int
    #: Id of the boot that ``boot_ms`` counts from; empty if unknown.
    boot_id: str = ""
    is_synchronized: bool = False


class Anchor(NamedTuple):
    """A store time, and the boot clock at that moment."""

    at_ms: int
    boot_ms: int
    boot_id: str


class Clock(Protocol):
    """Source of clock readings."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since 1970. It may jump."""

    def boot_ns(self) -> int:
        """Nanoseconds since the machine booted, including suspend. Never goes back."""

    def monotonic_ms(self) -> int:
        """Milliseconds that the machine was awake. Never goes back."""

    def boot_id(self) -> str:
        """Id of this boot of this machine; empty if unknown."""

    def is_synchronized(self) -> bool:
        """Whether the kernel reports a synchronized wall clock."""


class SystemClock:
    """The clocks of this machine."""

    def __init__(self) -> None:
        boot = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        #: ``Clock.boot_ns``: a partial instead of a method, because it is called for each message.
        self.boot_ns = partial(time.clock_gettime_ns, boot)
        self._boot_id = _read_boot_id()
        self._kernel_says = kernel_clock()

    def now_ms(self) -> int:
        """Wall time."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Time that the machine was awake."""
        return time.monotonic_ns() // 1_000_000

    def boot_id(self) -> str:
        """Id of this boot."""
        return self._boot_id

    def is_synchronized(self) -> bool:
        """Whether the kernel reports a synchronized wall clock."""
        return self._kernel_says()


def read(clock: Clock) -> ClockReading:
    """Read the wall clock and the boot clock at one moment."""
    is_synchronized = clock.is_synchronized()
    before_ns, wall_ms, boot_ns = clock.boot_ns(), clock.now_ms(), clock.boot_ns()
    for _ in range(READS_MAX):
        if boot_ns - before_ns < SAME_MOMENT_NS:
            break
        # The machine was suspended between the reads. Read again, or this would look like a gap.
        before_ns, wall_ms, boot_ns = boot_ns, clock.now_ms(), clock.boot_ns()
    return ClockReading(wall_ms, boot_ns // 1_000_000, clock.boot_id(), is_synchronized)


def time_at_start(last_at_ms: int, anchor: Anchor | None, reading: ClockReading) -> int:
    """Return the store time with which a store starts, given its last one (0 if it is new).

    If the machine has not rebooted since the anchor, the boot clock tells how long the store was
    closed. Otherwise the store counts as closed for no time. A wall clock that is less than
    ``GAP_MS`` ahead is followed; a larger difference remains as a gap.
    """
    if not last_at_ms:
        return reading.wall_ms
    # Later than every record before: store time tells which queue entries came after the start.
    at_ms = last_at_ms + 1
    if (
        anchor is not None
        and reading.boot_id
        and anchor.boot_id == reading.boot_id
        and anchor.boot_ms <= reading.boot_ms
    ):
        at_ms = max(at_ms, anchor.at_ms + reading.boot_ms - anchor.boot_ms)
    return reading.wall_ms if at_ms < reading.wall_ms < at_ms + GAP_MS else at_ms


# Linux.

_TIME_ERROR = 5
_STA_UNSYNC = 0x40


def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def kernel_clock(platform: str = sys.platform) -> Callable[[], bool]:
    """Return a function that tells whether ``adjtimex`` reports a synchronized wall clock.

    The call changes nothing in the kernel. Without ``adjtimex`` the function returns False.
    """
    # Imported here, so that commands that make no ``SystemClock`` do not wait for ctypes.
    import ctypes

    class Timex(ctypes.Structure):
        # The first fields of the kernel's structure; ``rest`` is room for the others.
        _fields_ = (
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_byte * 256),
        )

    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None) if platform == "linux" else None

    def is_synchronized() -> bool:
        if adjtimex is None:
            return False
        told = Timex()
        state = adjtimex(ctypes.byref(told))
        return 0 <= state != _TIME_ERROR and not told.status & _STA_UNSYNC

    return is_synchronized
