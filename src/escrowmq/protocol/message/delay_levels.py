"""The delay levels of 4.x clients, and the level at which a sent-back message is retried."""

from __future__ import annotations

import re

import msgspec

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"([0-9]{1,9})([smhd])")

#: RocketMQ's default levels, in its notation.
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LEVELS_MAX = 64
LEVEL_MS_MAX = 365 * _UNITS_MS["d"]

#: The level of the first retry: 10 seconds with the default levels.
_FIRST_RETRY_LEVEL = 3


class DelayLevels(msgspec.Struct, frozen=True):
    """Delay levels, numbered from 1."""

    waits_ms: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> DelayLevels:
        """Parse a text such as ``1s 5s 2h``; ``ValueError`` says what is valid."""
        words = text.split()
        if not 1 <= len(words) <= LEVELS_MAX:
            raise ValueError(f"must be 1 to {LEVELS_MAX} delays")
        return cls(tuple(map(_wait_ms, words)))

    @property
    def count(self) -> int:
        """The number of levels, which is also the highest level."""
        return len(self.waits_ms)

    def delay_ms(self, level: int) -> int:
        """Return the delay of a level: 0 below level 1, the last delay above the highest level."""
        return self.waits_ms[min(level, self.count) - 1] if level > 0 else 0

    def retry_level(self, reconsume_times: int, asked_level: int = 0) -> int:
        """Return the level for the next retry after ``reconsume_times`` earlier ones.

        A consumer may ask for a level. A negative level gives up the message; the caller must
        handle that case.
        """
        return min(asked_level or _FIRST_RETRY_LEVEL + reconsume_times, self.count)


def _wait_ms(word: str) -> int:
    found = _LEVEL.fullmatch(word)
    wait_ms = int(found[1]) * _UNITS_MS[found[2]] if found else 0
    if not 0 < wait_ms <= LEVEL_MS_MAX:
        raise ValueError(f"{word} is no delay: write 10s, 5m, 2h or 1d, up to 365d")
    return wait_ms
