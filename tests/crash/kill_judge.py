"""Compares the store that a killed process left with what its clients remember.

Called while no process serves the store and no command is in flight, so what is found is final.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from escrowmq.model.message import SentMessage
from escrowmq.protocol.message.stored_message import decode
from escrowmq.store.store import Store
from escrowmq.transaction import commands as c
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State
from escrowmq.transaction.table import Half
from tests.crash.judge import pulled
from tests.crash.kill_history import DECIDED, Decision, History, Op, Request, Tx, key_of
from tests.crash.model import Queue, Wrong


class Judge:
    """Compares the history with the store after each kill."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._bounds: dict[Queue, tuple[int, int]] = {}
        self._now_ms = 0
        self._halves: dict[str, Half] = {}

    def judge(self, store: Store, now_ms: int) -> None:
        """Raise ``Wrong`` at the first difference."""
        self._now_ms = now_ms
        self._judge_queues(store)
        self._read_rows(store)
        for tx in self.history.transactions.values():
            self._judge_transaction(store, tx)
        for op in self.history.appends:
            self._judge_append(op)
        for queue, places in self.history.places.items():
            self._judge_order(queue, places)

    # Queues.

    def _judge_queues(self, store: Store) -> None:
        history = self.history
        there = {(queue.topic, queue.queue_id): queue for queue in store.queues.values()}
        for queue, places in history.places.items():
            if queue not in there or there[queue].end <= max(places):
                raise Wrong(f"{queue} at {max(places)}: {places[max(places)]} is gone")
        for queue, opened in there.items():
            start, end = self._bounds.get(queue, (0, 0))
            if opened.start < start or opened.end < end:
                raise Wrong(f"{queue} was {start}-{end}, is {opened.start}-{opened.end}")
            found = pulled(store, queue, opened.start)
            if len(found) != opened.end - opened.start:
                raise Wrong(f"{queue} has {len(found)} in {opened.start}-{opened.end}")
            for offset, message in enumerate(found, opened.start):
                history.saw(queue, offset, message)
            self._judge_start(queue, start, opened.start)
            self._bounds[queue] = (opened.start, opened.end)

    def _judge_start(self, queue: Queue, before: int, start: int) -> None:
        """Raise if anything that is not old was deleted."""
        places = self.history.places.get(queue, {})
        for offset in range(before, start):
            key = places.get(offset)
            if key is not None and not self._is_deletable(key):
                raise Wrong(f"{queue} starts at {start}: {key} was deleted too early")

    def _is_deletable(self, key: str) -> bool:
        """Whether retention may have deleted a visible message, by when it was seen or sent."""
        history = self.history
        visible_ms = history.visible_ms.get(key)
        if visible_ms is None:
            message = history.messages[key]
            tx = history.owner.get(key)
            if tx is None:
                visible_ms = max(history.append_of[key].sent_ms, message.deliver_at_ms)
            else:
                decided_ms = tx.decision.at_ms if tx.decision else 0
                visible_ms = max(tx.requests[0].sent_ms, decided_ms) + message.deliver_after_ms
        return visible_ms <= self._now_ms - history.retention_ms + history.copy_after_ms

    def _judge_order(self, queue: Queue, places: dict[int, str]) -> None:
        """A message answered before another was sent comes before it in the queue."""
        latest = 0
        latest_key = ""
        for _, key in sorted(places.items()):
            span = self._span(key)
            if span is None:
                continue
            if span[1] < latest:
                raise Wrong(f"{queue}: {key} was answered before {latest_key} was sent")
            if span[0] > latest:
                latest, latest_key = span[0], key

    def _span(self, key: str) -> tuple[int, float] | None:
        """The first and last tick at which it may have become visible; None for delayed
        messages.
        """
        history = self.history
        message = history.messages[key]
        if message.deliver_at_ms or message.deliver_after_ms:
            return None
        tx = history.owner.get(key)
        if tx is None:
            op = history.append_of[key]
            return op.sent, op.ended
        tried = tx.tried.get(tx.decision.by) if tx.decision else None
        return (0, math.inf) if tried is None else (tried[1], tx.known_at)

    # Rows.

    def _read_rows(self, store: Store) -> None:
        """Find which message is in which row, including rows that no answer has mentioned."""
        history = self.history
        self._halves = {}
        for row in range(store.table.end):
            half = store.table.get(row)
            if half is None:
                continue
            key = history.rows.get(row)
            if half.is_needed or half.location >= store.log.start:
                stored = decode(store.reading.record_of(half))
                message = history.messages.get(key_of(stored.body))
                if message is None:
                    raise Wrong(f"row {row}: no client sent {stored}")
                if (stored.body, stored.topic, stored.queue_id, stored.properties) != (
                    message.body,
                    message.topic,
                    message.queue_id,
                    message.properties,
                ):
                    raise Wrong(f"row {row}: expected {message}, got {stored}")
                if key not in (None, key_of(stored.body)):
                    raise Wrong(f"row {row} was {key}, is {stored}")
                key = key_of(stored.body)
                history.rows[row] = key
            if key is None:
                continue
            if key in self._halves:
                raise Wrong(f"{key} is in rows {self._halves[key].half_offset} and {row}")
            self._halves[key] = half

    def _found(self, messages: Iterable[SentMessage]) -> list[Half]:
        keys = [key_of(message.body) for message in messages]
        return [self._halves[key] for key in keys if key in self._halves]

    # Transactions.

    def _judge_transaction(self, store: Store, tx: Tx) -> None:
        history = self.history
        may_be_gone = history.may_be_forgotten(tx, self._now_ms)
        halves: list[Half] = []
        for request in tx.requests:
            found = self._found(request.messages)
            halves += found
            if not may_be_gone:
                self._judge_request(store, tx, request, found)
        states = {half.state for half in halves}
        if len(states) > 1:
            raise Wrong(f"{tx.name} is partly {states}")
        if halves:
            self._judge_state(store, tx, halves)
        self._judge_visible(tx)

    def _judge_request(self, store: Store, tx: Tx, request: Request, found: list[Half]) -> None:
        count = len(request.messages)
        if len(found) not in ((count,) if request.first is not None else (0, count)):
            raise Wrong(f"{tx.name}: {len(found)} of {count} are left of {request}")
        if not found:
            return
        first = found[0].half_offset
        if [half.half_offset for half in found] != list(range(first, first + count)):
            raise Wrong(f"{tx.name}: {request} is in rows {found}")
        if request.first not in (None, first):
            raise Wrong(f"{tx.name}: {request} was found at {first}")
        if found[0].is_needed:
            number = -1 if request.number is None else request.number
            if store.table.identity(found[0]) != (tx.name, number):
                raise Wrong(f"row {first} is of {store.table.identity(found[0])}, not {tx.name}")

    def _judge_state(self, store: Store, tx: Tx, halves: list[Half]) -> None:
        """The state must be a possible one; it becomes the only possible one."""
        head = halves[0]
        if head.state in DECIDED:
            by, at_ms = store.table.decided_by(head)
            self.history.decided(tx, Decision(head.state, by, at_ms), self._now_ms)
            tx.was_found_decided = True
            return
        condition = (head.state, head.checks_sent)
        if condition not in tx.possible:
            raise Wrong(f"{tx.name} is {condition}, it can only be {tx.possible}")
        tx.possible = {condition}

    def _judge_visible(self, tx: Tx) -> None:
        history = self.history
        is_committed = tx.states == {State.COMMITTED}
        runs: dict[Queue, list[int]] = {}
        for request in tx.requests:
            for message in request.messages:
                key = key_of(message.body)
                offset = history.place_of.get(key)
                half = self._halves.get(key)
                is_waiting = half is not None and half.next_at_ms != NEVER and is_committed
                if is_committed and offset is None and not (is_waiting or self._is_deletable(key)):
                    raise Wrong(f"{key} of {tx.name} is lost: {half}, {tx.decision}")
                if is_waiting and offset is not None:
                    raise Wrong(f"{key} of {tx.name} is at {offset}, and waits: {half}")
                if not is_committed and offset is not None:
                    raise Wrong(f"{key} of {tx.name} is visible: {tx.possible}")
                if is_waiting and not message.deliver_after_ms:
                    raise Wrong(f"{key} of {tx.name} waits for no reason: {half}")
                if offset is not None and not message.deliver_after_ms:
                    runs.setdefault((message.topic, message.queue_id), []).append(offset)
        for queue, run in runs.items():
            if any(later <= earlier for earlier, later in itertools.pairwise(run)):
                raise Wrong(f"{tx.name} is out of order in {queue}: {run}")

    def _judge_append(self, op: Op) -> None:
        assert isinstance(op.asked, c.Append)
        history = self.history
        there: list[str] = []
        missing: list[str] = []
        for message in op.asked.messages:
            key = key_of(message.body)
            half = self._halves.get(key)
            is_waiting = half is not None and half.next_at_ms != NEVER
            if is_waiting and key in history.place_of:
                raise Wrong(f"{key} is visible, and waits: {half}")
            if is_waiting or key in history.place_of:
                there.append(key)
            elif not self._is_deletable(key):
                missing.append(key)
        if op.is_refused and there:
            raise Wrong(f"{there} are there, but refused was {op}")
        if missing and not op.is_refused and (there or op.ended != math.inf):
            raise Wrong(f"{missing} are gone, {there} are left of {op}")
