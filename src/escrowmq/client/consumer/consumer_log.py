"""Log of a consumer: it reports each problem at once, then rarely while the problem lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.event_log import event_log
from escrowmq.model.log_limit import LogLimit
from escrowmq.model.topic_names import DLQ_PREFIX

if TYPE_CHECKING:
    from escrowmq.client.messages.handling import Handled
    from escrowmq.client.messages.messages import Received
    from escrowmq.client.network.routing import QueueAddress
    from escrowmq.model.errors import EscrowError

log = event_log(__name__)

#: Interval at which the log repeats that a call still fails or a topic is still missing.
FAILED_AGAIN_S = 60.0
MISSING_AGAIN_S = 600.0
#: Maximum number of given-up messages that the log names, per topic and minute.
GIVEN_UP_LOGGED_MAX = 10
GIVEN_UP_AGAIN_S = 60.0

MISSING = "the topic does not exist; the consumer reads it as soon as it does"
FORBIDDEN = "the owner of the topic forbids reading it"


class ConsumerLog:
    """The log of one member of a consumer group."""

    def __init__(self, group: str, *, is_broadcast: bool) -> None:
        self._group = group
        self._is_broadcast = is_broadcast
        self._failed = LogLimit(log, burst=1, window_s=FAILED_AGAIN_S)
        self._missing = LogLimit(log, burst=1, window_s=MISSING_AGAIN_S)
        self._given_up = LogLimit(log, burst=GIVEN_UP_LOGGED_MAX, window_s=GIVEN_UP_AGAIN_S)

    def call_failed(
        self, event: str, error: EscrowError, place: QueueAddress | None = None, **more: object
    ) -> None:
        """Log a failed call to a broker, at most once a minute for each topic on each broker."""
        facts: dict[str, object] = {"group": self._group, **more}
        key = ("", "")
        if place is not None:
            # An unreachable broker fails the calls of all its queues.
            key = (place.topic, place.address)
            facts |= {"topic": place.topic, "queue_id": place.queue_id, "address": place.address}
        self._failed.warning(event, key, {**facts, "why": str(error)})

    def routed(self, topic: str, queue_count: int, *, exists: bool) -> None:
        """Log that a subscribed topic cannot be read, and later that it can be read again."""
        facts: dict[str, object] = {"group": self._group, "topic": topic}
        if not queue_count:
            facts["why"] = FORBIDDEN if exists else MISSING
            self._missing.warning("topic_missing", topic, facts)
        elif self._missing.forget("topic_missing", topic):
            log.info("topic_found", extra={**facts, "queues": queue_count})

    def gave_up(self, message: Received, handled: Handled) -> None:
        """Log that a message will not be delivered again."""
        kept = "" if self._is_broadcast else f"{DLQ_PREFIX}{self._group}"
        facts = {
            "group": self._group,
            "topic": message.topic,
            "message_id": message.message_id,
            "retries": message.retries,
            "dead_letters": kept or "none: the consumer broadcasts",
            "why": handled.why,
        }
        self._given_up.warning("message_given_up", message.topic, facts)
