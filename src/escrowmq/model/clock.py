"""What a machine says about time, and with which time a store goes on.

Time is an argument: whoever owns a loop reads a ``Clock`` and passes the number down.  A broker
does not take the wall clock at its word: ``broker/store_time.py`` makes store time of these
readings.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

GAP_MS = 60_000
"""Store time and wall time that are closer than this are brought together without a question."""

READS_MAX = 3
SAME_MOMENT_NS = 100_000_000


class Reading(NamedTuple):
    """What a clock said at one moment."""

    wall_ms: int
    boot_ms: int
    #: Which boot of which machine that counts from; empty if nobody knows.
    boot_id: str = ""
    is_synchronized: bool = False


class Anchor(NamedTuple):
    """A store time, and the boot clock at that moment."""

    at_ms: int
    boot_ms: int
    boot_id: str


class Clock(Protocol):
    """Where the shell reads the time."""

    def now_ms(self) -> int:
        """Wall time: milliseconds since 1970, as the machine believes.  It may jump."""
        ...

    def boot_ns(self) -> int:
        """Nanoseconds since the machine started, those in suspend included.  Never goes back."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that the machine was awake.  Never goes back."""
        ...

    def boot_id(self) -> str:
        """Which boot of which machine; empty if nobody knows."""
        ...

    def is_synchronized(self) -> bool:
        """Whether the kernel says that something keeps the wall clock right."""
        ...


class SystemClock:
    """The machine's clock."""

    def __init__(self) -> None:
        boot = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        #: As in ``Clock``; no function of ours, because it is called for each message.
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
        """Which boot this is."""
        return self._boot_id

    def is_synchronized(self) -> bool:
        """Whether the kernel vouches for the wall clock."""
        return self._kernel_says()


def read(clock: Clock) -> Reading:
    """Wall and boot clock of one moment."""
    is_synchronized = clock.is_synchronized()
    before_ns, wall_ms, boot_ns = clock.boot_ns(), clock.now_ms(), clock.boot_ns()
    for _ in range(READS_MAX):
        if boot_ns - before_ns < SAME_MOMENT_NS:
            break
        # The machine slept between the two: that is no gap.
        before_ns, wall_ms, boot_ns = boot_ns, clock.now_ms(), clock.boot_ns()
    return Reading(wall_ms, boot_ns // 1_000_000, clock.boot_id(), is_synchronized)


def time_at_start(last_at_ms: int, anchor: Anchor | None, reading: Reading) -> int:
    """The store time with which a store begins, whose last one is given (0: it is new).

    If this is still the boot under which it was written, the boot clock tells how long it was
    away.  If nobody knows, it was away for no time at all, and the rest is a gap.
    """
    if not last_at_ms:
        return reading.wall_ms
    # Later than everything before it: the time tells which queue entries came after the start.
    at_ms = last_at_ms + 1
    if (
        anchor is not None
        and reading.boot_id
        and anchor.boot_id == reading.boot_id
        and anchor.boot_ms <= reading.boot_ms
    ):
        at_ms = max(at_ms, anchor.at_ms + reading.boot_ms - anchor.boot_ms)
    if at_ms < reading.wall_ms < at_ms + GAP_MS:
        return reading.wall_ms
    return at_ms


# What Linux says.

_TIME_ERROR = 5
_STA_UNSYNC = 0x40


def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def kernel_clock(platform: str = sys.platform) -> Callable[[], bool]:
    """A function that says whether ``adjtimex`` vouches for the wall clock; it changes nothing.

    Where nobody can tell, it says no.
    """
    # Imported late: commands that never ask should not wait for it.
    import ctypes

    class Timex(ctypes.Structure):
        # The beginning of the kernel's structure; the rest is only room.
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
