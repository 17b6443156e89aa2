"""The parsed options of a read of messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from escrowmq.pipeline.options import Options, bad_option
from escrowmq.pipeline.source.message_columns import chosen
from escrowmq.pipeline.source.offsets import OffsetRange, QueueKey, Spans
from escrowmq.pipeline.source.queues import KnownBrokers, TopicSelection, known
from escrowmq.protocol.message.filter import TAGS_MAX

_COMMON = (
    "broker",
    "view",
    "topic",
    "topicPattern",
    "startingOffsets",
    "startingTimestamp",
    "maxRowsPerPartition",
    "columns",
    "includeProperties",
    "tags",
    "keys",
    "failOnDataLoss",
    "retryMs",
)
_OF_BATCHES = ("endingOffsets", "endingTimestamp")
_OF_STREAMS = ("maxRowsPerBatch", "availableNow")
EARLIEST = "earliest"
LATEST = "latest"
#: The numbers that stand for these words in JSON.
_NAMED = {-2: EARLIEST, -1: LATEST}
_OFFSETS = (
    'earliest, latest, or JSON such as {"topic": {"0": 5}}, where -2 means earliest and -1 latest; '
    'for several brokers {"broker": {"topic": {"0": 5}}}'
)
_INSTANT = "milliseconds since 1970, or a time such as 2026-11-16T12:00:00Z"


@dataclass(frozen=True)
class Bound:
    """Where to begin or end."""

    #: ``earliest`` or ``latest``, for queues that are not named.
    word: str
    #: By broker (empty means any), topic and queue.
    offsets: Mapping[QueueKey, int]
    at_ms: int = -1

    def of(self, key: QueueKey, there: OffsetRange) -> int:
        """The offset in this queue."""
        offset = self.offsets.get(key, self.offsets.get(key._replace(broker="")))
        word = self.word if offset is None else _NAMED.get(offset, "")
        if word:
            return there.start if word == EARLIEST else there.end
        assert offset is not None
        return offset

    def missing(self, there: Spans) -> list[QueueKey]:
        """The named queues that do not exist."""
        of_any = {key._replace(broker="") for key in there}
        return [key for key in self.offsets if key not in there and key not in of_any]

    def all(self, there: Spans) -> dict[QueueKey, int]:
        """The offsets in all of these queues."""
        return {key: self.of(key, span) for key, span in there.items()}


@dataclass(frozen=True)
class MessageOptions:
    """Parsed options of a read of messages."""

    brokers: tuple[str, ...]
    topics: TopicSelection
    start: Bound
    end: Bound
    rows_per_batch_max: int
    #: Rows per task; 0 picks a number that fits the size of the read.
    rows_per_partition_max: int
    columns: tuple[str, ...]
    tags: tuple[str, ...]
    keys: tuple[str, ...]
    fails_on_loss: bool
    patience_s: float
    #: The trigger, as the user gives it for versions of Spark that do not pass it on; None if not
    #: given.
    available_now: bool | None

    def known(self, *, from_ms: int = -1) -> KnownBrokers:
        """Ask the brokers for the queues of these topics. Runs on the driver."""
        return known(self.brokers, self.topics, self.patience_s, from_ms=from_ms)


def batch_options(given: Mapping[str, str]) -> MessageOptions:
    """Parse the options of a batch read."""
    return _read(Options(given, (*_COMMON, *_OF_BATCHES)))


def stream_options(given: Mapping[str, str]) -> MessageOptions:
    """Parse the options of a stream read."""
    return _read(Options(given, (*_COMMON, *_OF_STREAMS)))


def any_options(given: Mapping[str, str]) -> MessageOptions:
    """Parse options before the kind of read is known: Spark asks for the columns first."""
    return _read(Options(given, (*_COMMON, *_OF_BATCHES, *_OF_STREAMS)))


def _read(options: Options) -> MessageOptions:
    start, end = _bound(options, "starting", EARLIEST), _bound(options, "ending", LATEST)
    _check_order(start, end)
    return MessageOptions(
        brokers=options.brokers(),
        topics=_topics(options),
        start=start,
        end=end,
        rows_per_batch_max=options.whole("maxRowsPerBatch", 0, low=1, high=2**31 - 1),
        rows_per_partition_max=options.whole("maxRowsPerPartition", 0, low=1, high=2**31 - 1),
        columns=chosen(
            options.names("columns"),
            with_properties=options.flag("includeProperties", default=False),
        ),
        tags=_tags(options),
        keys=options.names("keys"),
        fails_on_loss=options.flag("failOnDataLoss", default=True),
        patience_s=options.whole("retryMs", 30_000, low=0, high=3_600_000) / 1_000,
        available_now=options.flag_or_none("availableNow"),
    )


def _check_order(start: Bound, end: Bound) -> None:
    """Refuse an end before its start, if both are numbers of the same kind."""
    if 0 <= end.at_ms < start.at_ms:
        raise bad_option("endingTimestamp", "not before startingTimestamp", str(end.at_ms))
    for key, offset in end.offsets.items():
        if 0 <= offset < start.offsets.get(key, 0):
            where = f"{key.topic} {key.queue_id}: {offset}"
            raise bad_option("endingOffsets", "not before startingOffsets", where)


def _tags(options: Options) -> tuple[str, ...]:
    tags = options.names("tags", "||")
    if len(tags) > TAGS_MAX:
        raise bad_option("tags", f"at most {TAGS_MAX}, separated by ||")
    return tags


def _topics(options: Options) -> TopicSelection:
    names, pattern = options.names("topic"), options.text("topicPattern", "")
    if not names and not pattern:
        raise bad_option("topic", "give topic names separated by commas, or topicPattern")
    if names and pattern:
        raise bad_option("topic", "give topic or topicPattern, not both")
    try:
        re.compile(pattern)
    except re.error as error:
        raise bad_option("topicPattern", f"a regular expression: {error}", pattern) from None
    return TopicSelection(names, pattern)


def _bound(options: Options, which: str, word: str) -> Bound:
    offsets, instant = options.text(f"{which}Offsets", ""), options.text(f"{which}Timestamp", "")
    if offsets and instant:
        raise bad_option(f"{which}Offsets", f"this or {which}Timestamp, not both", offsets)
    if instant:
        return Bound(word, {}, _instant_ms(f"{which}Timestamp", instant))
    if offsets.lower() in ("", EARLIEST, LATEST):
        return Bound(offsets.lower() or word, {})
    try:
        return Bound(word, dict(_named_offsets(msgspec.json.decode(offsets))))
    except (ValueError, TypeError, AttributeError):
        raise bad_option(f"{which}Offsets", _OFFSETS, offsets) from None


def _named_offsets(kept: dict[str, Any]) -> list[tuple[QueueKey, int]]:
    """Offsets by topic and queue, or by broker, topic and queue."""
    found = []
    for outer, inner in kept.items():
        for name, value in inner.items():
            if isinstance(value, dict):
                for queue_id, offset in value.items():
                    found.append((QueueKey(outer, name, int(queue_id)), _offset(offset)))
            else:
                found.append((QueueKey("", outer, int(name)), _offset(value)))
    return found


def _offset(value: object) -> int:
    if type(value) is not int or value < min(_NAMED):
        raise ValueError("an offset is a whole number")
    return value


def _instant_ms(name: str, text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise bad_option(name, _INSTANT, text) from None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return int(instant.timestamp() * 1_000)
