"""Configuration of scheduled backups, and when the next backup is due."""

from __future__ import annotations

import re
from dataclasses import dataclass

from escrowmq.model.bounds import bad_setting, check_bounds

DAY_MS = 86_400_000
RETRY_MS = 900_000
"""The pause after a failed backup; it is the interval instead if that is shorter."""

OVERDUE_MS = 3_600_000
"""A backup is overdue this long after two intervals have passed."""

_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupConfig:
    """Section ``[backup]``.

    The broker makes backups on a schedule, checks each one by restoring it, and deletes old ones.
    """

    #: Directory for backups on the broker's machine; empty: the broker makes no backups.
    directory: str = ""
    #: Time between two backups.
    interval_ms: int = DAY_MS
    #: Make one backup a day at this time in UTC, such as `03:30`, and ignore the interval.
    daily_at: str = ""
    #: Good backups to keep; the broker deletes older ones after it has checked a newer one.
    keep: int = 7
    #: A backup that takes longer, with its check, is stopped and counts as failed.
    timeout_ms: int = 21_600_000

    def __post_init__(self) -> None:
        check_bounds("backup", self, _BOUNDS)
        if self.daily_at and not _TIME.fullmatch(self.daily_at):
            raise bad_setting(
                "backup.daily_at", "must be a time of day as HH:MM, in UTC", self.daily_at[:16]
            )

    @property
    def is_on(self) -> bool:
        """Whether the broker makes backups."""
        return bool(self.directory)

    @property
    def period_ms(self) -> int:
        """Time between two backups."""
        return DAY_MS if self.daily_at else self.interval_ms


_BOUNDS = (
    ("interval_ms", 1_000, 365 * DAY_MS),
    ("keep", 1, 10_000),
    ("timeout_ms", 1_000, 30 * DAY_MS),
)


def due_at_ms(
    config: BackupConfig, *, last_good_ms: int, last_failed_ms: int, started_ms: int
) -> int:
    """Return when the next backup is to begin; a time of 0 means that the event never happened.

    A broker without a good backup makes one at once, unless ``daily_at`` sets a time of day.
    """
    if config.daily_at:
        due_ms = _next_time_of_day(config.daily_at, last_good_ms or started_ms)
    else:
        due_ms = last_good_ms + config.interval_ms if last_good_ms else started_ms
    if last_failed_ms > last_good_ms:
        return max(due_ms, last_failed_ms + min(RETRY_MS, config.period_ms))
    return due_ms


def overdue_ms(config: BackupConfig, *, last_good_ms: int, started_ms: int, now_ms: int) -> int:
    """Return for how long a good backup has been overdue, or 0 if it is not overdue."""
    late_ms = now_ms - (last_good_ms or started_ms) - 2 * config.period_ms - OVERDUE_MS
    return max(late_ms, 0) if config.is_on else 0


def _next_time_of_day(text: str, after_ms: int) -> int:
    hours, minutes = map(int, text.split(":"))
    at_ms = after_ms // DAY_MS * DAY_MS + (hours * 60 + minutes) * 60_000
    return at_ms if at_ms > after_ms else at_ms + DAY_MS
