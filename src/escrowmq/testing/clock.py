"""A clock that a test sets by hand."""

from __future__ import annotations


class ManualClock:
    """A ``Clock`` that stands still until the test changes it.

    ``advance`` lets time pass on all clocks. The other methods set the wall clock, suspend the
    machine, or turn it off and on.
    """

    def __init__(
        self, now_ms: int = 1_700_000_000_000, *, synchronized: bool = True, boot_ms: int = 1_000
    ) -> None:
        self._now_ms = now_ms
        self._boot_ms = boot_ms
        self._monotonic_ms = boot_ms
        self._boots = 1
        #: Whether the kernel reports the wall clock as synchronized.
        self.synchronized = synchronized

    def now_ms(self) -> int:
        """Return the wall clock, in milliseconds since the epoch."""
        return self._now_ms

    def boot_ns(self) -> int:
        """Return the nanoseconds since the machine started."""
        return 1_000_000 * self._boot_ms

    def monotonic_ms(self) -> int:
        """Return the milliseconds that the machine was awake."""
        return self._monotonic_ms

    def boot_id(self) -> str:
        """Return the id of the current boot."""
        return f"boot-{self._boots}"

    def is_synchronized(self) -> bool:
        """Return whether the kernel reports the wall clock as synchronized."""
        return self.synchronized

    def advance(self, *, ms: int = 0, seconds: float = 0) -> None:
        """Let time pass."""
        passed_ms = _whole_ms(ms, seconds)
        if passed_ms < 0:
            raise ValueError("time does not go back; jump sets the wall clock back")
        self._now_ms += passed_ms
        self._boot_ms += passed_ms
        self._monotonic_ms += passed_ms

    def set(self, ms: int) -> None:
        """Set only the wall clock, forward or back, as happens to real clocks."""
        self._now_ms = ms

    def jump(self, *, ms: int = 0, seconds: float = 0) -> None:
        """Move only the wall clock, forward or, if negative, back."""
        self._now_ms += _whole_ms(ms, seconds)

    def suspend(self, *, seconds: float) -> None:
        """Suspend the machine: all clocks except the monotonic clock advance."""
        self._now_ms += _whole_ms(0, seconds)
        self._boot_ms += _whole_ms(0, seconds)

    def power_off(self, *, seconds: float) -> None:
        """Turn the machine off and on: only the wall clock advances, the others restart."""
        self._now_ms += _whole_ms(0, seconds)
        self._boot_ms = self._monotonic_ms = 1_000
        self._boots += 1


def _whole_ms(ms: int, seconds: float) -> int:
    # The store keeps whole milliseconds.
    return round(ms + 1_000 * seconds)
