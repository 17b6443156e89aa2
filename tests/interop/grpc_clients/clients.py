"""Handles on the 5.x clients that a peer runs for us."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.interop.clients import Client
from tests.interop.errors import WaitedInVain
from tests.interop.lines import WAIT_TIMEOUT_S
from tests.interop.values import Answer, Asked, Shown, View

#: How long a receive waits at the broker.
WAIT_MS = 2_000
#: The shortest that every client can ask for.
INVISIBLE_MS = 10_000
#: Messages that one receive asks for.
BATCH_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A message to send; every one has one key."""

    topic: str
    key: str
    body: bytes = b"body"
    tag: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    message_group: str | None = None
    deliver_at_ms: int | None = None

    def json(self) -> dict[str, Any]:
        fields = {
            "topic": self.topic,
            "key": self.key,
            "body": base64.b64encode(self.body).decode(),
            "tag": self.tag,
            "properties": dict(self.properties),
            "message_group": self.message_group,
            "deliver_at_ms": self.deliver_at_ms,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What a send told; None where the client does not report a value."""

    message_id: str
    transaction_id: str | None = None
    recall_handle: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A message that a simple consumer received; the handle stands for the client's own object."""

    handle: str
    view: View

    @property
    def key(self) -> str:
        return self.view.key


class GrpcProducer(Client):
    """A producer with a scripted transaction checker."""

    def send(self, draft: Draft) -> Placed:
        return msgspec.convert(self._call("send", message=draft.json()), Placed)

    def send_in_transaction(
        self, draft: Draft, then: str, *, checks: Sequence[Answer] = ()
    ) -> Placed:
        """Send a half message, then commit it, roll it back, or leave it undecided."""
        self.script(draft.key, checks)
        told = self._call("send_in_transaction", message=draft.json(), then=then)
        return msgspec.convert(told, Placed)

    def script(self, key: str, checks: Sequence[Answer]) -> None:
        """Set the checker's answers for a key; the last one is repeated."""
        self._call("script", key=key, checks=[str(check) for check in checks])

    def recall(self, topic: str, recall_handle: str) -> str:
        """Take a delayed message back; return its id."""
        told = self._call("recall", topic=topic, recall_handle=recall_handle)
        return str(told["message_id"])

    def wait_for_check(
        self, key: str, number: int = 1, *, timeout_s: float = WAIT_TIMEOUT_S
    ) -> Asked:
        return self._lines.events.wait_for(
            Asked,
            lambda event: (event.client, event.view.key, event.number) == (self.name, key, number),
            timeout_s=timeout_s,
        )

    def checks(self, key: str) -> int:
        """Return how often the broker asked about a key so far."""
        asked = self._lines.events.of(
            Asked, lambda event: event.client == self.name and event.view.key == key
        )
        return len(asked)


class SimpleConsumer(Client):
    """A consumer that receives and acknowledges when it is told to."""

    def receive(
        self, max_count: int = BATCH_MAX, *, invisible_ms: int = INVISIBLE_MS
    ) -> list[Taken]:
        told = self._call("receive", max=max_count, invisible_ms=invisible_ms)
        return msgspec.convert(told["messages"], list[Taken])

    def begin_receive(self) -> None:
        """Receive without waiting for the answer."""
        fields = {"client": self.name, "max": BATCH_MAX, "invisible_ms": INVISIBLE_MS}
        self._lines.submit("receive", fields)

    def receive_some(
        self,
        count: int = 1,
        *,
        max_count: int = BATCH_MAX,
        invisible_ms: int = INVISIBLE_MS,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> list[Taken]:
        """Receive until there are this many messages; the clients ask the queues one by one."""
        deadline = time.monotonic() + timeout_s
        found: list[Taken] = []
        while len(found) < count:
            if time.monotonic() > deadline:
                raise WaitedInVain(f"{count} messages", timeout_s, [one.view for one in found])
            found += self.receive(max_count, invisible_ms=invisible_ms)
        return found

    def take(self, count: int = 1) -> list[View]:
        """Receive this many messages, and acknowledge them."""
        found = self.receive_some(count)
        for taken in found:
            self.ack(taken)
        return [taken.view for taken in found]

    def ack(self, taken: Taken) -> None:
        self._call("ack", handle=taken.handle)

    def change_invisible(self, taken: Taken, invisible_ms: int) -> None:
        self._call("change_invisible", handle=taken.handle, invisible_ms=invisible_ms)


class GrpcPushConsumer(Client):
    """Reports each message that its listener is given."""

    def wait_for(
        self,
        count: int = 1,
        where: Callable[[Shown], bool] = lambda _: True,
        *,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> list[Shown]:
        """Wait until the listener was given this many messages."""
        return self._lines.events.wait_for_many(
            Shown,
            lambda event: event.client == self.name and where(event),
            count=count,
            timeout_s=timeout_s,
        )
