"""A process that speaks JSON lines: answers to our commands, and unsolicited events."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from tests.interop.child import Child
from tests.interop.errors import InteropError, PeerRefused, WaitedInVain
from tests.interop.values import Event, event_of

CALL_TIMEOUT_S = 60
WAIT_TIMEOUT_S = 60

Kind = TypeVar("Kind", bound=Event)


class Events:
    """All events in order; a wait looks at past events first."""

    def __init__(self) -> None:
        self._seen: list[Event] = []
        self._changed = threading.Condition()
        self._ended: InteropError | None = None

    def add(self, event: Event) -> None:
        with self._changed:
            self._seen.append(event)
            self._changed.notify_all()

    def end(self, reason: InteropError) -> None:
        """Record that no more events will come, and wake all waiters with the reason."""
        with self._changed:
            self._ended = reason
            self._changed.notify_all()

    def of(
        self, kind: type[Kind], predicate: Callable[[Kind], bool] = lambda _: True
    ) -> list[Kind]:
        """Return the matching events so far."""
        with self._changed:
            return [event for event in self._seen if isinstance(event, kind) and predicate(event)]

    def wait_for(
        self,
        kind: type[Kind],
        predicate: Callable[[Kind], bool] = lambda _: True,
        *,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> Kind:
        """Wait for the first matching event."""
        return self.wait_for_many(kind, predicate, count=1, timeout_s=timeout_s)[0]

    def wait_for_many(
        self,
        kind: type[Kind],
        predicate: Callable[[Kind], bool] = lambda _: True,
        *,
        count: int,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> list[Kind]:
        """Return all matching events as soon as there are this many."""
        deadline = time.monotonic() + timeout_s
        found: list[Kind] = []
        looked_at = 0
        with self._changed:
            while True:
                news, looked_at = self._seen[looked_at:], len(self._seen)
                found += [event for event in news if isinstance(event, kind) and predicate(event)]
                if len(found) >= count:
                    return found
                if self._ended is not None:
                    raise self._ended
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    what = f"{kind.__name__} ({len(found)} of {count})"
                    raise WaitedInVain(what, timeout_s, list(self._seen))
                self._changed.wait(left_s)


class LineProcess:
    """A process on JSON lines: one thread reads, and any thread may write."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.events = Events()
        self._pending: dict[int, tuple[str, Future[dict[str, Any]]]] = {}
        self._next_id = 0
        self._lock = threading.Lock()
        self._ended: InteropError | None = None
        self._reader = threading.Thread(target=self._read, name=child.name, daemon=True)
        self._reader.start()

    def submit(self, command: str, fields: Mapping[str, object]) -> Future[dict[str, Any]]:
        """Send a command without waiting; fields that are None are left out."""
        future: Future[dict[str, Any]] = Future()
        given = {name: value for name, value in fields.items() if value is not None}
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._next_id += 1
            self._pending[self._next_id] = (command, future)
            line = json.dumps({"id": self._next_id, "do": command, **given}) + "\n"
            # If the pipe is broken, the reading thread tells the waiters that the process died.
            try:
                self.child.stdin.write(line.encode())
                self.child.stdin.flush()
            except BrokenPipeError:
                pass
        return future

    def call(
        self, command: str, fields: Mapping[str, object], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        return self.submit(command, fields).result(timeout_s)

    def close(self) -> None:
        self.child.kill()
        self._reader.join()

    def _read(self) -> None:
        for line in self.child.stdout:
            fields = json.loads(line)
            if "event" in fields:
                self.events.add(event_of(fields))
            else:
                self._answer(fields)
        reason = self.child.died()
        with self._lock:
            self._ended = reason
            left, self._pending = self._pending, {}
        for _, future in left.values():
            future.set_exception(reason)
        self.events.end(reason)

    def _answer(self, fields: dict[str, Any]) -> None:
        with self._lock:
            command, future = self._pending.pop(fields["id"])
        error = fields.get("error")
        if error is None:
            future.set_result(fields["ok"])
        else:
            refusal = PeerRefused(command, error["type"], error["message"], error.get("code"))
            future.set_exception(refusal)
