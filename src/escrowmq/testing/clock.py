"""A clock that a test moves by hand."""

from __future__ import annotations


class ManualClock:
    """A ``Clock`` that stands still until it is told otherwise.

    ``advance`` is time that passes.  Everything else is what happens to clocks: the wall clock is
    set, the machine sleeps, or is off.
    """

    def __init__(
        self, now_ms: int = 1_700_000_000_000, *, synchronized: bool = True, boot_ms: int = 1_000
    ) -> None:
        self._now_ms = now_ms
        self._boot_ms = boot_ms
        self._monotonic_ms = boot_ms
        self._boots = 1
        #: Whether the kernel says that something keeps the wall clock right.
        self.synchronized = synchronized

    def now_ms(self) -> int:
        """Milliseconds since the epoch: the wall clock."""
        return self._now_ms

    def boot_ns(self) -> int:
        """Nanoseconds since the machine started."""
        return 1_000_000 * self._boot_ms

    def monotonic_ms(self) -> int:
        """Milliseconds that the machine was awake."""
        return self._monotonic_ms

    def boot_id(self) -> str:
        """Which boot this is."""
        return f"boot-{self._boots}"

    def is_synchronized(self) -> bool:
        """Whether the kernel vouches for the wall clock."""
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
        """Set the wall clock, and no other, backwards too: real clocks are set."""
        self._now_ms = ms

    def jump(self, *, ms: int = 0, seconds: float = 0) -> None:
        """Set the wall clock, and no other, ahead by so much; below 0, back."""
        self._now_ms += _whole_ms(ms, seconds)

    def suspend(self, *, seconds: float) -> None:
        """Let the machine sleep: all but the monotonic clock go on."""
        self._now_ms += _whole_ms(0, seconds)
        self._boot_ms += _whole_ms(0, seconds)

    def power_off(self, *, seconds: float) -> None:
        """Let the machine be off, and start it again: only the wall clock knows how long."""
        self._now_ms += _whole_ms(0, seconds)
        self._boot_ms = self._monotonic_ms = 1_000
        self._boots += 1


def _whole_ms(ms: int, seconds: float) -> int:
    # The store has no place for a part of a millisecond.
    return round(ms + 1_000 * seconds)
