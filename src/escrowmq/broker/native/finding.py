"""Native requests about single messages: by key, by any id, and what a transaction holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from escrowmq.broker.native.calls import PAGE_S_MAX, Call, looks
from escrowmq.broker.native.reading import READ_BYTES_MAX, message_row
from escrowmq.broker.state.transaction_lookup import message_ranges
from escrowmq.model.errors import RequestRefused
from escrowmq.model.topic_names import GROUP_TOPIC_PREFIXES
from escrowmq.protocol.message.ids import offset_message_id, parse_offset_message_id
from escrowmq.protocol.message.message_views import stored_at_ms
from escrowmq.protocol.message.properties import index_facts
from escrowmq.protocol.message.stored_message import decode, skim
from escrowmq.protocol.native.previews import (
    BODY_BYTES_MAX,
    PREVIEWS_MAX,
    FindMessagesHeader,
    PreviewHalvesHeader,
    SoughtHalfRow,
)
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.store.reading.reader import LOOKED_MAX, Located, StoreReader
from escrowmq.store.store import Store
from escrowmq.transaction.records import PLAIN
from escrowmq.transaction.states import State
from escrowmq.transaction.table import Half

HALF_OFFSET_DIGITS_MAX = 18
"""A longer number is not a half offset: it may not fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class NativeFinding:
    """Handles FIND_MESSAGES and PREVIEW_HALVES."""

    store: Store
    reader: StoreReader

    # Messages by key or id.

    @looks(NativeCode.FIND_MESSAGES)
    def find(self, call: Call[FindMessagesHeader]) -> None:
        """Find messages by key or id."""
        header = call.header
        limit = call.spec.answer_rows_max
        if header.limit > 0:
            limit = min(limit, header.limit)
        if header.message_id:
            self._find_by_id(call, header.message_id, limit)
        elif header.topic and header.key:
            # These are the views that consumers get, which contain the log offset.
            views = self.reader.find(
                header.topic, header.key, limit=limit, with_undecided=header.with_undecided
            )
            located = map(self.reader.at, [decode(view).log_offset for view in views])
            call.answer_rows(_rows(one for one in located if one is not None))
        else:
            raise RequestRefused("search_unnamed", "give a topic and a key, or a message id")

    def _find_by_id(self, call: Call[FindMessagesHeader], message_id: str, limit: int) -> None:
        kinds: dict[str, Callable[[str], list[Located]]] = {
            # First, because a client may choose any text as its unique key.
            "unique_key": self._by_unique_key,
            "transaction_id": self._by_transaction_id,
            "message_id": self._by_offset_id,
            "half_offset": self._by_half_offset,
        }
        for found_by, find in kinds.items():
            found = find(message_id)[:limit]
            if found:
                call.answer_rows(_rows(iter(found)), found_by=found_by, **_standing(found[0]))
                return
        call.answer_rows([])

    def _by_unique_key(self, unique_key: str) -> list[Located]:
        """Return messages with this unique key: the sent one before its retries."""
        found = [
            (located, topic.startswith(GROUP_TOPIC_PREFIXES))
            for located in _affordable(self.reader.candidates(unique_key))
            for _, _, _, _, topic, properties in [skim(located.message)]
            if index_facts(properties)[0] == unique_key
        ]
        # The sort is stable, so the newest of equals stays first.
        found.sort(key=lambda one: (one[1], not one[0].is_visible))
        return [located for located, _ in found]

    def _by_transaction_id(self, transaction_id: str) -> list[Located]:
        half = self.reader.find_transaction(transaction_id)
        return [] if half is None else self._of_transaction(half)

    def _by_offset_id(self, message_id: str) -> list[Located]:
        try:
            _, log_offset = parse_offset_message_id(message_id)
        except RequestRefused:
            return []
        located = self.reader.at(log_offset)
        if located is None:
            return []
        stored = decode(located.message)
        # The id of another broker may contain an offset that this log has, too.
        is_it = offset_message_id(stored.store_host, stored.log_offset) == message_id.upper()
        return [located] if is_it else []

    def _by_half_offset(self, number: str) -> list[Located]:
        if not (number.isascii() and number.isdecimal() and len(number) <= HALF_OFFSET_DIGITS_MAX):
            return []
        half = self.store.core.half(int(number))
        located = None if half is None else self.reader.at(half.log_offset)
        return [] if located is None else [located]

    def _of_transaction(self, half: Half) -> list[Located]:
        """Return messages of a transaction, as many as an answer may have."""
        ranges, _ = message_ranges(self.store, half)
        rows = (row for first, count in ranges for row in range(first, first + count))
        halves = map(self.store.table.get, islice(rows, LOOKED_MAX))
        located = (self.reader.at(one.log_offset) for one in halves if one is not None)
        return list(_affordable(one for one in located if one is not None))

    # Messages in transactions.

    @looks(NativeCode.PREVIEW_HALVES)
    def preview(self, call: Call[PreviewHalvesHeader]) -> None:
        """Describe the first messages of as many transactions as ``PAGE_S_MAX`` allows."""
        header = call.header
        messages_max = min(max(header.messages_max, 1), PREVIEWS_MAX)
        bytes_max = min(max(header.body_bytes, 0), BODY_BYTES_MAX)
        until = time.monotonic() + PAGE_S_MAX
        rows: list[tuple[object, ...]] = []
        covered = 0
        for sought in call.rows(SoughtHalfRow):
            if covered and (time.monotonic() >= until or len(rows) + messages_max > PREVIEWS_MAX):
                break
            rows += self._previews(sought.half_offset, messages_max, bytes_max, until)
            covered += 1
        call.answer_rows(rows, covered=covered)

    def _previews(
        self, half_offset: int, messages_max: int, bytes_max: int, until: float
    ) -> Iterator[tuple[object, ...]]:
        """Yield messages of one transaction: at least one, fewer than wanted after ``until``."""
        store = self.store
        half = store.core.half(half_offset)
        if half is None:
            return
        ranges, message_count = message_ranges(store, half)
        rows = (row for first, count in ranges for row in range(first, first + count))
        for place, row in enumerate(islice(rows, messages_max)):
            if place and time.monotonic() >= until:
                return
            one = store.table.get(row)
            if one is None or one.location < store.log.start or store.lost.hold(one.location):
                continue
            message = decode(store.reading.record_of(one))
            unique_key, keys, tags = index_facts(message.properties)
            yield (
                half_offset,
                place,
                message_count,
                message.topic,
                message.queue_id,
                offset_message_id(message.store_host, message.log_offset),
                unique_key,
                " ".join(keys),
                tags,
                message.body[:bytes_max],
                len(message.body),
                message.sys_flag,
            )


def _affordable(found: Iterator[Located]) -> Iterator[Located]:
    """Yield messages up to a limit of number and bytes: other clients wait for these reads."""
    left_bytes = READ_BYTES_MAX
    for located in islice(found, LOOKED_MAX):
        yield located
        left_bytes -= len(located.message)
        if left_bytes <= 0:
            return


def _rows(found: Iterator[Located]) -> list[tuple[object, ...]]:
    return [
        message_row(
            located.message,
            stored_at_ms(located.message) if located.half is None else located.half.stored_at_ms,
            is_visible=located.is_visible,
        )
        for located in _affordable(found)
    ]


def _standing(located: Located) -> dict[str, object]:
    """Return whether consumers see a message, and the state of its transaction."""
    half = located.half
    # A delayed message has a row in the table of half messages, too.
    is_transactional = half is not None and half.origin != PLAIN
    fields: dict[str, object] = {}
    if half is not None and is_transactional:
        fields["half_offset"] = half.half_offset
    if located.is_visible or half is None:
        return {**fields, "state": "visible"}
    if is_transactional and half.state is not State.COMMITTED:
        return {**fields, "state": half.state.label}
    if half.state is State.ROLLED_BACK:
        return {**fields, "state": "recalled"}
    return {**fields, "state": "waiting", "due_at_ms": half.next_at_ms}
