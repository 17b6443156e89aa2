"""Recall handles: with one, the sender of a delayed message takes it back.

The text is that of RocketMQ 5.3 and later, because its remoting clients read the broker's name from
it: version, topic, broker, time and message id, in Base64. Ours ends with the message's place and a
code over everything before, so a handle that this broker did not make is refused.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import NamedTuple

from escrowmq.broker.state.row_places import (
    PlaceCodes,
    RowPlace,
    epoch_to_check,
    read_place,
)
from escrowmq.broker.state.topics import Topics
from escrowmq.model.errors import RequestRefused
from escrowmq.model.message import SentMessage
from escrowmq.model.topic_names import OWN_PREFIXES
from escrowmq.store.store import Store
from escrowmq.transaction.commands import Appended, Decision
from escrowmq.transaction.recall_commands import Recall
from escrowmq.transaction.records import Scheduled

VERSION = "v1"
HANDLE_CHARS_MAX = 8_192


class HandledMessage(NamedTuple):
    """The delayed message that a handle names."""

    message_id: str
    place: RowPlace


class RecallHandles:
    """Makes and reads the recall handles of one broker."""

    def __init__(self, broker: str, key: bytes) -> None:
        self._broker = broker
        self._codes = PlaceCodes(b"recall", key)

    def of_stored(self, decision: Decision, epoch: str) -> str | None:
        """Return the handle of the only message that was stored; None if it does not wait."""
        scheduled = next(reversed(decision.records), None)
        if not isinstance(scheduled, Scheduled):
            return None
        reply = decision.reply
        assert isinstance(reply, Appended)
        if len(decision.messages) != 1:
            return None
        (message,), (log_offset,) = decision.messages, reply.log_offsets
        if message.topic.startswith(OWN_PREFIXES):
            # Clients cannot recall a retry or a dead letter.
            return None
        return self.make(message, RowPlace(epoch, scheduled.first, log_offset))

    def make(self, message: SentMessage, place: RowPlace) -> str:
        """Return the handle of a delayed message."""
        named = (
            f"{self._start(message.topic)}{message.deliver_at_ms} {message.unique_key}"
            f" {place.text()}"
        )
        return urlsafe_b64encode(f"{named}.{self._codes.of(named)}".encode()).decode()

    def read(self, topic: str, handle: str) -> HandledMessage:
        """Return what a handle names; refuse one that this broker did not make for this topic."""
        named, _, code = _decoded(handle).rpartition(".")
        start = self._start(topic)
        if not named.startswith(start) or not self._codes.fits(named, code):
            raise RequestRefused(
                "recall_handle_illegal",
                "this broker did not make it for this topic; send the one that it answered",
                topic=topic,
                handle=handle[:64],
            )
        _, _, rest = named.removeprefix(start).partition(" ")
        message_id, _, place = rest.rpartition(" ")
        return HandledMessage(message_id, read_place(place))

    def _start(self, topic: str) -> str:
        return f"{VERSION} {topic} {self._broker} "


@dataclass(frozen=True, slots=True)
class Recalls:
    """Turns requests to take a message back into commands, whatever the protocol."""

    handles: RecallHandles
    store: Store
    topics: Topics

    def command(self, topic: str, handle: str, by: str) -> tuple[Recall, str]:
        """Return the command that takes a handle's message back, and the message's id."""
        self.topics.named(topic)
        message_id, place = self.handles.read(topic, handle)
        command = Recall(
            half_offset=place.half_offset,
            log_offset=place.log_offset,
            epoch=epoch_to_check(self.store.core.lineage, place),
            by=by,
        )
        return command, message_id


def _decoded(handle: str) -> str:
    """Return the text of a handle; an empty one if it is no handle."""
    if len(handle) > HANDLE_CHARS_MAX:
        return ""
    try:
        text = urlsafe_b64decode(handle.encode()).decode()
    except ValueError:
        return ""
    # Base64 may be written in several ways, and only one is ours.
    return text if urlsafe_b64encode(text.encode()).decode() == handle else ""
