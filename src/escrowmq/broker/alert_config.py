"""What an operator may set about notices of alerts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from urllib.parse import urlsplit

from escrowmq.broker.alert_rules import ALERTS
from escrowmq.model.bounds import check_bounds
from escrowmq.model.errors import RequestRefused

ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsConfig:
    """Section ``[alerts]``.

    The broker tells a web address, a program, or both when something needs an operator, and again
    when it is over.
    """

    #: Where each notice is posted as JSON; `${VARIABLE}` is taken from the environment.  Empty:
    #: nowhere.
    url: str = ""
    #: A program and its arguments, without a shell; it gets the notice as JSON on standard input.
    command: str = ""
    #: Which alerts: `all`, or names with commas between them.
    which: str = ALL
    #: How often the broker looks.
    interval_ms: int = 5_000
    #: A condition must hold this long before it is told.
    hold_ms: int = 30_000
    #: An alert that still holds is told again after this; 0 means never.
    repeat_ms: int = 14_400_000
    #: How long the web server or the program may take.
    timeout_ms: int = 10_000
    #: Notices that wait; beyond this the oldest is dropped.
    queue_max: int = 256
    #: Notices that leave in one minute.
    per_minute_max: int = 20
    #: From this age on, the oldest undecided transaction is an alert.
    undecided_age_ms: int = 3_600_000

    def __post_init__(self) -> None:
        check_bounds("alerts", self, _BOUNDS)
        if self.url and (why := _fault(self.url)):
            # Without the value, which may hold a secret.
            raise RequestRefused("bad_config", why, key="alerts.url")
        try:
            shlex.split(self.command)
        except ValueError as error:
            raise RequestRefused("bad_config", str(error), key="alerts.command") from None
        unknown = sorted(self.names - set(ALERTS))
        if unknown:
            raise RequestRefused(
                "bad_config",
                f"there are {', '.join(ALERTS)}, or {ALL}",
                key="alerts.which",
                value=unknown[0][:64],
            )

    @property
    def is_on(self) -> bool:
        """Whether anybody is told."""
        return bool(self.url or self.command)

    @property
    def names(self) -> frozenset[str]:
        """The alerts that are told."""
        if self.which.strip() == ALL:
            return frozenset(ALERTS)
        return frozenset(name.strip() for name in self.which.split(",") if name.strip())


def _fault(url: str) -> str:
    """Why no notice could be posted to this address; empty if one could."""
    try:
        split = urlsplit(url)
        # Reading it raises ValueError if it is no number, or too large.
        _ = split.port
    except ValueError:
        return "its host or its port is malformed"
    if split.scheme not in {"http", "https"} or not split.hostname:
        return "must begin with http:// or https:// and a host"
    if split.username is not None:
        return "must have no user and password before the host; put a token into the path"
    if not (url.isascii() and url.isprintable()) or " " in url:
        return "must have no spaces and only ASCII characters; write others as %XX"
    return ""


def masked(url: str) -> str:
    """The address as it may be shown: scheme and host alone, because hooks keep tokens in paths."""
    if not url:
        return url
    try:
        split = urlsplit(url)
    except ValueError:
        return "***"
    host = split.hostname or ""
    port = f":{split.netloc.rpartition(':')[2]}" if _has_port(split.netloc) else ""
    return f"{split.scheme}://{host}{port}/***"


def _has_port(netloc: str) -> bool:
    return netloc.rpartition("@")[2].rpartition(":")[2].isdecimal()


_BOUNDS = (
    ("interval_ms", 10, 3_600_000),
    ("hold_ms", 0, 86_400_000),
    ("repeat_ms", 0, 30 * 86_400_000),
    ("timeout_ms", 100, 300_000),
    ("queue_max", 1, 10_000),
    ("per_minute_max", 1, 6_000),
    ("undecided_age_ms", 1_000, 30 * 86_400_000),
)
