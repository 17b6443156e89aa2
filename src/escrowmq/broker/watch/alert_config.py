"""Configuration of alert notices."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from urllib.parse import urlsplit

from escrowmq.broker.watch.alert_rules import ALERTS
from escrowmq.model.bounds import bad_setting, check_bounds
from escrowmq.model.errors import RequestRefused

ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsConfig:
    """Section ``[alerts]``.

    The broker notifies a web address, a program, or both when something needs an operator, and
    again when it is over.
    """

    #: The broker posts each notice to this address as JSON; `${VARIABLE}` is taken from the
    #: environment. Empty: the broker posts nothing.
    url: str = ""
    #: A program and its arguments, without a shell; it reads the notice as JSON on standard input.
    command: str = ""
    #: Alerts to send: `all`, or names separated by commas.
    which: str = ALL
    #: How often the broker checks the conditions.
    interval_ms: int = 5_000
    #: A condition must hold this long before the broker sends its notice; parked transactions and
    #: contradictions cause one at once.
    hold_ms: int = 30_000
    #: The broker repeats the notice of an alert that still holds after this time; 0 means never.
    repeat_ms: int = 14_400_000
    #: Timeout for the web server or the program.
    timeout_ms: int = 10_000
    #: Notices that may wait to be sent; if the queue is full, the broker drops the oldest one.
    queue_max: int = 256
    #: Notices that the broker sends in one minute at most.
    per_minute_max: int = 20
    #: The broker alerts when the oldest undecided transaction reaches this age.
    undecided_age_ms: int = 3_600_000

    def __post_init__(self) -> None:
        check_bounds("alerts", self, _BOUNDS)
        if self.url and (why := _fault(self.url)):
            # The error omits the value, which may hold a secret.
            raise RequestRefused("bad_config", why, key="alerts.url")
        try:
            shlex.split(self.command)
        except ValueError as error:
            raise RequestRefused("bad_config", str(error), key="alerts.command") from None
        unknown = sorted(self.names - set(ALERTS))
        if unknown:
            raise bad_setting(
                "alerts.which", f"there are {', '.join(ALERTS)}, or {ALL}", unknown[0][:64]
            )

    @property
    def is_on(self) -> bool:
        """Whether the broker sends notices at all."""
        return bool(self.url or self.command)

    @property
    def names(self) -> frozenset[str]:
        """The alerts for which the broker sends notices."""
        if self.which.strip() == ALL:
            return frozenset(ALERTS)
        return frozenset(name.strip() for name in self.which.split(",") if name.strip())


def _fault(url: str) -> str:
    """Return why the broker cannot post to this address, or an empty string if it can."""
    try:
        split = urlsplit(url)
        # Reading the port raises ValueError if it is not a number or too large.
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
    """Return scheme and host of the address: its path may hold a token, so it is not shown."""
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
