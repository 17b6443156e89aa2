"""Sends alert notices: a separate thread posts them and runs the operator's program.

The event loop only reads the broker's status and puts notices into a bounded queue. A web server
or a program that hangs delays other notices and nothing else.
"""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
import urllib.error
from collections import deque
from collections.abc import Callable

import msgspec

from escrowmq.broker.native.status import OUR_RELEASE, BrokerStatus
from escrowmq.broker.watch.alert_config import AlertsConfig
from escrowmq.broker.watch.alert_rules import AlertStates, Notice
from escrowmq.broker.watch.notice_ways import execute, post
from escrowmq.model.event_log import event_log

log = event_log(__name__)

ATTEMPTS_MAX = 3
#: Pause before the second attempt, in seconds; each further pause is five times as long.
RETRY_S = 1.0
MINUTE_S = 60.0
ERROR_CHARS_MAX = 200


class AlertCounts(msgspec.Struct, kw_only=True):
    """Outcomes of notices since the broker started."""

    sent: int = 0
    failed: int = 0
    #: Dropped because the queue was full.
    dropped: int = 0
    #: Error of the last notice, without the address; empty if that notice was sent.
    last_error: str = ""


class NoticeSender:
    """Bounded queue of notices, and the thread that sends them."""

    def __init__(
        self, config: AlertsConfig, sleep: Callable[[float], object] | None = None
    ) -> None:
        self._config = config
        self._waiting: deque[Notice] = deque()
        self._changed = threading.Condition()
        self._is_over = threading.Event()
        self._sleep = sleep or self._is_over.wait
        #: When the notices of the last minute were sent, on the monotonic clock.
        self._left_at: deque[float] = deque()
        #: Outcomes of notices.
        self.counts = AlertCounts()

    def start(self) -> None:
        """Start the sending thread."""
        # A daemon thread: at exit the process does not wait for a web server.
        threading.Thread(target=self._run, name="alerts", daemon=True).start()

    def stop(self) -> None:
        """Stop sending; a notice that is being sent may still arrive."""
        self._is_over.set()
        with self._changed:
            self._changed.notify_all()

    def put(self, notice: Notice) -> None:
        """Queue a notice without waiting; if the queue is full, drop the oldest one."""
        with self._changed:
            if len(self._waiting) >= self._config.queue_max:
                self._waiting.popleft()
                self.counts.dropped += 1
            self._waiting.append(notice)
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._is_over.is_set():
            with self._changed:
                while not self._waiting and not self._is_over.is_set():
                    self._changed.wait()
            self._wait_for_turn()
            with self._changed:
                notice = self._waiting.popleft() if self._waiting else None
            if notice is not None and not self._is_over.is_set():
                self._deliver(notice)

    def _wait_for_turn(self) -> None:
        """Wait until the rate limit allows another notice; the full queue drops the excess."""
        now = time.monotonic()
        while self._left_at and now - self._left_at[0] >= MINUTE_S:
            self._left_at.popleft()
        if len(self._left_at) >= self._config.per_minute_max:
            self._sleep(MINUTE_S - (now - self._left_at[0]))
            self._left_at.popleft()
        self._left_at.append(time.monotonic())

    def _deliver(self, notice: Notice) -> None:
        body = msgspec.json.encode(notice)
        errors = []
        if self._config.url:
            errors.append(self._try(lambda: self._post(body)))
        if self._config.command:
            errors.append(self._try(lambda: self._execute(notice, body)))
        error = "; ".join(one for one in errors if one)
        self.counts.last_error = error[:ERROR_CHARS_MAX]
        if error:
            self.counts.failed += 1
            log.error("alert_not_sent", extra={"alert": notice.alert, "why": error})
        else:
            self.counts.sent += 1

    def _try(self, send: Callable[[], None]) -> str:
        """Send with retries; return the last error, or an empty string after a success."""
        error = ""
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                self._sleep(RETRY_S * 5 ** (attempt - 1))
            if self._is_over.is_set():
                return "the broker stops"
            try:
                send()
            except Exception as failure:  # noqa: BLE001 - no error may end the thread
                error = describe(failure)
            else:
                return ""
        return error

    def _post(self, body: bytes) -> None:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"escrowmq/{OUR_RELEASE}",
        }
        post(self._config.url, body, headers, self._config.timeout_ms / 1_000)

    def _execute(self, notice: Notice, body: bytes) -> None:
        environ = {"ESCROWMQ_ALERT": notice.alert, "ESCROWMQ_ALERT_STATE": notice.state}
        command = shlex.split(self._config.command)
        execute(command, body, environ, self._config.timeout_ms / 1_000)


class Alerting(NoticeSender):
    """Checks the alert conditions and queues notices; call ``look`` from the event loop only."""

    def __init__(self, config: AlertsConfig) -> None:
        super().__init__(config)
        self._states = AlertStates(config.names, hold_ms=config.hold_ms, repeat_ms=config.repeat_ms)

    @property
    def firing(self) -> list[str]:
        """Alerts that hold and have a notice."""
        return self._states.firing

    def look(self, told: BrokerStatus) -> None:
        """Check the broker's status, and queue the notices that are due."""
        for notice in self._states.look(told, undecided_age_ms=self._config.undecided_age_ms):
            log.warning(
                "alert", extra={"alert": notice.alert, "state": notice.state, "value": notice.value}
            )
            self.put(notice)


def describe(failure: Exception) -> str:
    """Describe a failure without its address and arguments, which may hold secrets."""
    if isinstance(failure, urllib.error.HTTPError):
        return f"the web server answered {failure.code}"
    if isinstance(failure, urllib.error.URLError):
        return f"the web server cannot be reached: {type(failure.reason).__name__}"
    if isinstance(failure, subprocess.TimeoutExpired | TimeoutError):
        return "it did not end in time"
    if isinstance(failure, subprocess.CalledProcessError):
        return f"the program ended with {failure.returncode}"
    if isinstance(failure, OSError):
        return f"{type(failure).__name__}: {failure.strerror or 'failed'}"
    return type(failure).__name__
