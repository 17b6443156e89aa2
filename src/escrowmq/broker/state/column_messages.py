"""Makes many half messages from columns at once, as ``messages.py`` makes one message.

Values that all messages of a queue share are made once, and properties are read for all messages
together. If any row is unusual (a message without an id, properties with a bad end, a topic of a
group, an IPv6 address), the caller makes all rows of the request one by one instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from escrowmq.broker.state.messages import Messages
from escrowmq.model.message_columns import MessageColumns, Numbers, QueueOfColumns, Slices
from escrowmq.protocol.message.ids import IPV4_HOST_BYTES
from escrowmq.protocol.message.limits import BODY_BYTES_MAX
from escrowmq.protocol.message.properties import (
    KEYS,
    PROPERTIES_BYTES_MAX,
    TAGS,
    UNIQ_KEY,
    split_keys,
    tags_code,
)
from escrowmq.protocol.message.property_columns import PAIR_END, PropertyColumns
from escrowmq.protocol.message.sent_facts import may_wait, read_sent_facts
from escrowmq.protocol.native.columns import BodyColumns
from escrowmq.store.meta.meta import MessageType

#: Prefix of the topics that the broker keeps for groups.
_GROUP_MARK = "%"
_BLANK = 0x20
ANY_QUEUE = -1
#: Queue ids have 31 bits; one more bit makes room for ``ANY_QUEUE``.
_QUEUE_BITS = 32
_QUEUE_MASK = 2**_QUEUE_BITS - 1


@dataclass(frozen=True, slots=True)
class ColumnMessages:
    """Makes the half messages of one request."""

    maker: Messages
    rows: BodyColumns
    now_ms: int
    #: First turn of the messages whose queue the broker chooses.
    turn: int

    def make(
        self, more_properties: Callable[[str, int], bytes], born_host: bytes
    ) -> MessageColumns | None:
        """Return all messages, or None if the caller must make them one by one.

        Raises RequestRefused if a message is for a queue that it cannot be sent to.
        """
        rows = self.rows
        bodies, properties = rows.slices("body"), rows.slices("properties")
        if not len(rows) or len(born_host) != IPV4_HOST_BYTES or not _are_whole(properties):
            return None
        found = PropertyColumns(properties.data, properties.offsets)
        unique_of, starts, ends = found.find(UNIQ_KEY)
        if len(unique_of) < len(rows) or int(bodies.lengths.max()) > BODY_BYTES_MAX:
            return None
        places = self._places()
        if places is None:
            return None
        named, queue_of = places
        queues = tuple(QueueOfColumns(*one, more_properties(*one)) for one in named)
        data = properties.data
        keys, keyed = _hashed_keys(found, data)
        made = MessageColumns(
            queues=queues,
            queue_of=queue_of,
            bodies=bodies,
            properties=properties,
            flags=rows.numbers("flag"),
            sys_flags=rows.numbers("sys_flag"),
            born_at_ms=rows.numbers("born_at_ms"),
            born_host=born_host,
            unique=_hashes(data, starts, ends),
            keys=keys,
            keyed=keyed,
            tags=_tags(found, data, len(rows)),
            deliver_after_ms=self._waits(properties),
        )
        return made if int(made.property_bytes.max()) <= PROPERTIES_BYTES_MAX else None

    def _places(self) -> tuple[list[tuple[str, int]], Numbers] | None:
        """Return the queues, and the index of each message's queue."""
        names, topic_of = self.rows.distinct("topic")
        if any(name.startswith(_GROUP_MARK) for name in names):
            return None
        # For an id below 0 the broker chooses in turns; a request that is sent again gets the same.
        queue_ids = np.maximum(self.rows.numbers("queue_id").astype(np.int64), ANY_QUEUE)
        turns = np.arange(self.turn, self.turn + len(queue_ids))
        # A topic and a queue packed into one number, so that each pair is looked up once.
        places = topic_of << _QUEUE_BITS | (queue_ids - ANY_QUEUE)
        for place in np.unique(places).tolist():
            topic_at, queue_id = place >> _QUEUE_BITS, (place & _QUEUE_MASK) + ANY_QUEUE
            topics = self.maker.topics
            first = topics.type_from_first(MessageType.TRANSACTION)
            topic, _ = self.maker.place(
                names[topic_at], queue_id, self.now_ms, turn=0, message_type=first
            )
            topics.check_type(topic, MessageType.TRANSACTION)
            if queue_id == ANY_QUEUE:
                here = places == place
                queue_ids[here] = turns[here] % max(topic.write_queue_count, 1)
        numbers, queue_of = np.unique(topic_of << _QUEUE_BITS | queue_ids, return_inverse=True)
        named = [
            (names[number >> _QUEUE_BITS], number & _QUEUE_MASK) for number in numbers.tolist()
        ]
        return named, queue_of

    def _waits(self, properties: Slices) -> list[int]:
        if not may_wait(properties.data):
            return []
        waits_ms = self.maker.waits_ms
        born_at_ms = self.rows.numbers("born_at_ms").tolist()
        return [
            waits_ms(read_sent_facts(one), born)
            for one, born in zip(properties.each(), born_at_ms, strict=True)
        ]


def _are_whole(properties: Slices) -> bool:
    """Whether each entry is empty or ends with the mark that ends a pair."""
    data = np.frombuffer(properties.data, dtype=np.uint8)
    ends = properties.offsets[1:][properties.lengths > 0]
    return bool((data[ends - 1] == PAIR_END).all())


def _hashes(data: bytes, starts: Numbers, ends: Numbers) -> list[int]:
    return [crc32(data[at:end]) for at, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _hashed_keys(found: PropertyColumns, data: bytes) -> tuple[list[int], list[int]]:
    """Return the hashes of all keys, and the row of each."""
    rows, starts, ends = found.find(KEYS)
    blanks = np.flatnonzero(found.data == _BLANK)
    if not len(blanks):
        return _hashes(data, starts, ends), rows.tolist()
    keys, keyed = [], []
    for row, at, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        for key in split_keys(data[at:end].decode()):
            keys.append(crc32(key.encode()))
            keyed.append(row)
    return keys, keyed


def _tags(found: PropertyColumns, data: bytes, count: int) -> list[int]:
    codes = [0] * count
    for row, at, end in zip(*(column.tolist() for column in found.find(TAGS)), strict=True):
        codes[row] = tags_code(data[at:end].decode())
    return codes
