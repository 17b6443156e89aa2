"""The delays that 4.x clients choose from, and when a message that was given back comes again."""

from __future__ import annotations

_SECOND_MS = 1_000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS

#: Level 1 is the first.
DELAY_LEVELS_MS = (
    1 * _SECOND_MS,
    5 * _SECOND_MS,
    10 * _SECOND_MS,
    30 * _SECOND_MS,
    *(minutes * _MINUTE_MS for minutes in range(1, 11)),
    20 * _MINUTE_MS,
    30 * _MINUTE_MS,
    1 * _HOUR_MS,
    2 * _HOUR_MS,
)
DELAY_LEVEL_MAX = len(DELAY_LEVELS_MS)

#: The level of the first retry, ten seconds.
_FIRST_RETRY_LEVEL = 3


def delay_ms(level: int) -> int:
    """How long a level waits: not at all below 1, and two hours beyond the last."""
    return DELAY_LEVELS_MS[min(level, DELAY_LEVEL_MAX) - 1] if level > 0 else 0


def retry_level(reconsume_times: int, asked_level: int = 0) -> int:
    """The level for the next try of a message that was given back so often before.

    A consumer may ask for a level itself.  Below 0 it gives the message up, which is not for here.
    """
    level = asked_level or _FIRST_RETRY_LEVEL + reconsume_times
    return min(level, DELAY_LEVEL_MAX)
