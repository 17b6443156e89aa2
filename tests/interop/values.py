"""Typed values that go to a peer and come back."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

Json = Mapping[str, Any]

COMMITTED_FLAG = 0x8


class Answer(StrEnum):
    """A scripted transaction listener's reaction to a question."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    NULL = "null"
    THROW = "throw"
    #: Wait until ``release`` gives the answer.
    HANG = "hang"


def sleep_then(ms: int, answer: Answer) -> str:
    """Return an answer that comes after a delay."""
    return f"sleep:{ms}:{answer}"


def once_executed(answer: Answer) -> str:
    """Return an answer like a database's: unknown until the local transaction has run."""
    return f"executed:{answer}"


class Model(StrEnum):
    """Whether the members of a group share the messages or each member gets all."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class FromWhere(StrEnum):
    """Where a group without offsets starts."""

    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    LAST = "CONSUME_FROM_LAST_OFFSET"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to send."""

    topic: str
    body: bytes = b"body"
    keys: str | None = None
    tags: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    delay_level: int | None = None
    delay_ms: int | None = None
    deliver_at_ms: int | None = None

    def json(self) -> dict[str, Any]:
        fields = {
            "topic": self.topic,
            "body": base64.b64encode(self.body).decode(),
            "keys": self.keys,
            "tags": self.tags,
            "properties": dict(self.properties),
            "delay_level": self.delay_level,
            "delay_ms": self.delay_ms,
            "deliver_at_ms": self.deliver_at_ms,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The result of a client's send; None where the client does not report a value."""

    status: str
    message_id: str | None = None
    offset_message_id: str | None = None
    transaction_id: str | None = None
    queue: int | None = None
    queue_offset: int | None = None
    local_state: str | None = None

    @classmethod
    def of(cls, fields: Json) -> Sent:
        return msgspec.convert(fields, cls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message as a stock client shows it; None where the client does not report a value.

    Bodies are base64 on the line.
    """

    message_id: str
    offset_message_id: str | None
    topic: str
    queue: int
    queue_offset: int
    log_offset: int | None
    keys: str | None
    tags: str | None
    properties: Mapping[str, str]
    body: bytes
    reconsume_times: int
    stored_at_ms: int
    born_at_ms: int
    prepared_offset: int
    sys_flag: int | None

    @classmethod
    def of(cls, fields: Json) -> Received:
        return msgspec.convert(fields, cls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The peer is up."""

    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTransaction:
    """The client called ``executeLocalTransaction``."""

    client: str
    key: str
    transaction_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackCheck:
    """The client called ``checkLocalTransaction``, for the ``number``-th time for this key."""

    client: str
    key: str
    number: int
    transaction_id: str | None
    message: Received


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A push consumer's listener was given a message, and accepted it or not."""

    client: str
    accepted: bool
    message: Received


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A message as a 5.x client shows it; bodies are base64 on the line."""

    message_id: str
    topic: str
    body: bytes
    keys: list[str]
    tag: str | None
    properties: Mapping[str, str]
    #: Messages of one group come in order.
    message_group: str | None
    #: 1 at the first delivery; None where the client does not tell it.
    attempt: int | None

    @property
    def key(self) -> str:
        """The only key."""
        (key,) = self.keys
        return key

    @classmethod
    def of(cls, fields: Json) -> View:
        return msgspec.convert(fields, cls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A 5.x client called its transaction checker, for the ``number``-th time for this key."""

    client: str
    number: int
    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The listener of a 5.x push consumer was given a message, and accepted it or not."""

    client: str
    accepted: bool
    view: View


Event = Ready | LocalTransaction | BackCheck | Delivered | Asked | Shown

EVENTS: dict[str, type[Event]] = {
    "ready": Ready,
    "local": LocalTransaction,
    "check": BackCheck,
    "message": Delivered,
    "asked": Asked,
    "shown": Shown,
}


def event_of(fields: Json) -> Event:
    return msgspec.convert(fields, EVENTS[fields["event"]])
