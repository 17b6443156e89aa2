"""Events in a range of the log, as columns of a list.

The most common records arrive as columns and stay columns. The events of all other records are
merged with them in log order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from escrowmq.broker.native.events import NOTHING, EventKind, TransactionEvent, events_of
from escrowmq.protocol.native.answer_columns import Named, Numbers, Sparse, Texts, compact
from escrowmq.store.reading.log_sweep import Lone, RecordChoice, Swept
from escrowmq.store.store import Store
from escrowmq.transaction.memory.names import Names
from escrowmq.transaction.states import State

_NUMBERS = (
    "log_offset",
    "at_ms",
    "kind",
    "head",
    "first",
    "count",
    "origin",
    "number",
    "checks_sent",
    "queue",
    "queue_offset",
    "forced",
)
_LAYOUT = np.dtype([(name, "<i8") for name in _NUMBERS])
_OF_EVENTS = _NUMBERS[2:]

_DECISIONS = (int(EventKind.COMMITTED), int(EventKind.ROLLED_BACK))
ANY = frozenset(EventKind)


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Events in log order."""

    numbers: Numbers
    #: By field name, as UTF-8.
    texts: dict[str, list[bytes | None]]

    def __len__(self) -> int:
        return len(self.numbers)

    def part(self, start: int, end: int) -> EventColumns:
        """Return the events in ``[start, end)``."""
        texts = {name: texts[start:end] for name, texts in self.texts.items()}
        return EventColumns(self.numbers[start:end], texts)

    def of(self, head: int) -> EventColumns:
        """Return the events of one transaction except carries; a decision of many requests once."""
        numbers = self.numbers
        is_again = np.isin(numbers["kind"], _DECISIONS) & (numbers["first"] != head)
        is_its = (numbers["head"] == head) & (numbers["kind"] != int(EventKind.CARRIED)) & ~is_again
        places = np.flatnonzero(is_its)
        texts = {name: [texts[at] for at in places.tolist()] for name, texts in self.texts.items()}
        return EventColumns(numbers[places], texts)

    def events(self) -> Iterator[tuple[int, int, TransactionEvent]]:
        """Yield each event with its log offset and time."""
        for at, (log_offset, at_ms, kind, *numbers) in enumerate(self.numbers.tolist()):
            fields: dict[str, Any] = dict(zip(_OF_EVENTS[1:], numbers, strict=True))
            fields.update((name, _decoded(texts[at])) for name, texts in self.texts.items())
            yield log_offset, at_ms, TransactionEvent(kind=EventKind(kind), **fields)

    # Columns.

    def plain(self, name: str) -> Numbers:
        """Return a column of numbers that every event has."""
        column: Numbers = self.numbers[name]
        return column

    def sparse(self, name: str) -> Sparse:
        """Return a column of numbers that some events have."""
        return Sparse(self.numbers[name], self.numbers[name] == NOTHING)

    def text(self, name: str) -> Texts:
        """Return a column of texts that some events have."""
        return Texts(self.texts[name])

    def either_text(self, name: str, other: str) -> Texts:
        """Return a column with the first of two texts that is not empty, or an empty text."""
        pairs = zip(self.texts[name], self.texts[other], strict=True)
        return Texts([one or another or b"" for one, another in pairs])

    def state(self) -> Numbers:
        """Return the decided states."""
        is_committed = self.numbers["kind"] == int(EventKind.COMMITTED)
        return np.where(is_committed, int(State.COMMITTED), int(State.ROLLED_BACK))

    def event(self) -> Named:
        """Return the names of the kinds of events."""
        return Named(self.numbers["kind"], [kind.label for kind in EventKind])

    def origin(self, names: Names) -> tuple[Named, Named]:
        """Return the producer groups and ledgers."""
        numbers, seen = _named(self.numbers["origin"])
        named = [names.origins[number] for number in seen]
        return (
            Named(numbers, [None, *(one.group for one in named)]),
            Named(numbers, [None, *(one.ledger for one in named)]),
        )

    def queue(self, names: Names) -> tuple[Named, Sparse]:
        """Return the topics and queue ids."""
        numbers, seen = _named(self.numbers["queue"])
        # A deleted queue gets no name, because the name may belong to another queue now.
        named = [names.queues.get(number) for number in seen]
        queue_ids = np.array([-1, *(-1 if one is None else one.queue_id for one in named)])
        return (
            Named(numbers, [None, *(None if one is None else one.topic for one in named)]),
            Sparse(queue_ids[numbers], queue_ids[numbers] < 0),
        )


def _named(numbers: Numbers) -> tuple[Numbers, list[int]]:
    """Return positions in the list ``[None, *names]``, and the numbers of these names."""
    positions, seen = compact(np.maximum(numbers, -1) + 1)
    if seen and seen[0] == 0:
        return positions, [number - 1 for number in seen[1:]]
    return positions + 1, [number - 1 for number in seen]


class List:
    """A list of some kinds of events."""

    def __init__(self, kinds: frozenset[EventKind], texts: Mapping[str, str]) -> None:
        self._kinds = kinds
        #: By text field, the column that needs it.
        self._texts = texts
        self.wanted = RecordChoice(
            halves=EventKind.HELD in kinds,
            decisions=EventKind.COMMITTED in kinds,
            others_with_messages=EventKind.HELD in kinds,
            others_without=bool(kinds - {EventKind.HELD, EventKind.CARRIED}),
            texts=bool(texts),
        )

    def with_columns(self, columns: Collection[str]) -> List:
        """Return this list without the texts that no column needs."""
        texts = {name: column for name, column in self._texts.items() if column in columns}
        return List(self._kinds, texts)

    def tell(self, swept: Swept, store: Store) -> EventColumns:
        """Return the events of a sweep."""
        parts = [self._halves(lone) for lone in swept.halves]
        parts += [self._decisions(lone) for lone in swept.decisions]
        if EventKind.VISIBLE in self._kinds:
            parts += [self._visible(lone) for lone in swept.decisions]
        others = [
            (passed.log_offset, passed.stored_at_ms, event)
            for passed in swept.others
            for record in passed.records
            for event in events_of(record, store.core)
            if event.kind in self._kinds
        ]
        if EventKind.UNREADABLE in self._kinds:
            others += [
                (
                    at,
                    _since(store, at),
                    TransactionEvent(kind=EventKind.UNREADABLE, detail=f"{length} bytes"),
                )
                for at, length in swept.unreadable
            ]
        if others:
            parts.append(self._others(others))
        return self._in_order(parts)

    def _halves(self, lone: Lone) -> EventColumns:
        records = lone.records
        return self._columns(
            lone,
            "transaction_id",
            kind=int(EventKind.HELD),
            origin=records["origin"],
            number=records["number"],
        )

    def _decisions(self, lone: Lone) -> EventColumns:
        records = lone.records
        is_committed = records["state"] == int(State.COMMITTED)
        return self._columns(
            lone,
            "by",
            kind=np.where(is_committed, int(EventKind.COMMITTED), int(EventKind.ROLLED_BACK)),
        )

    def _visible(self, lone: Lone) -> EventColumns:
        records = lone.records
        told = self._columns(
            lone,
            "",
            kind=int(EventKind.VISIBLE),
            queue=records["queue"],
            queue_offset=records["queue_offset"],
        )
        is_shown = records["queue"] >= 0
        count = int(np.count_nonzero(is_shown))
        return EventColumns(told.numbers[is_shown], {name: [None] * count for name in self._texts})

    def _columns(self, lone: Lone, text: str, **columns: Numbers | int) -> EventColumns:
        """Return events of transactions with one message each."""
        count, rows = len(lone.records), lone.records["row"]
        columns = {"head": rows, "first": rows, "count": 1, **columns}
        numbers = np.empty(count, dtype=_LAYOUT)
        numbers["log_offset"] = lone.offsets
        numbers["at_ms"] = lone.at_ms
        for name in _OF_EVENTS:
            numbers[name] = columns.get(name, NOTHING)
        texts: dict[str, list[bytes | None]] = {
            name: list(lone.texts) if name == text else [None] * count for name in self._texts
        }
        return EventColumns(numbers, texts)

    def _others(self, others: list[tuple[int, int, TransactionEvent]]) -> EventColumns:
        numbers = [
            (at, at_ms, *(getattr(event, name) for name in _OF_EVENTS))
            for at, at_ms, event in others
        ]
        texts = {
            name: [_encoded(getattr(event, name)) for _, _, event in others] for name in self._texts
        }
        return EventColumns(np.array(numbers, dtype=_LAYOUT), texts)

    def _in_order(self, parts: list[EventColumns]) -> EventColumns:
        if len(parts) == 1:
            return parts[0]
        numbers = np.concatenate([np.empty(0, dtype=_LAYOUT), *(part.numbers for part in parts)])
        offsets = numbers["log_offset"]
        texts = {
            name: [text for part in parts for text in part.texts[name]] for name in self._texts
        }
        if np.all(offsets[1:] >= offsets[:-1]):
            return EventColumns(numbers, texts)
        # A stable sort keeps the order of events within a frame.
        order = np.argsort(offsets, kind="stable")
        places = order.tolist()
        for name, column in texts.items():
            texts[name] = [column[place] for place in places]
        return EventColumns(numbers[order], texts)


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _decoded(text: bytes | None) -> str | None:
    return None if text is None else text.decode()


def _since(store: Store, log_offset: int) -> int:
    """Return when the segment with this offset was begun: lost records in it are not older."""
    segments = (one for one in reversed(store.log.segments) if one.start <= log_offset)
    return next((one.first_at_ms for one in segments), 0)
