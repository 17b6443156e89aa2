"""Messages in flight: each is done, in flight or visible, and never given to two at once."""

from __future__ import annotations

import tracemalloc

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from escrowmq.broker.pop.flights import AHEAD_MAX, QueueFlights
from escrowmq.transaction.memory.pops import PopPosition
from escrowmq.transaction.records import NEVER

INVISIBLE_MS = 1_000


class Popping(RuleBasedStateMachine):
    """A queue that grows, consumers that pop and acknowledge, and a broker that restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.end = 0
        self.start = 0
        #: What the log holds.
        self.position = PopPosition(0)
        self.flights = QueueFlights(self.position)
        #: By offset: receipt and end of the last delivery.
        self.held: dict[int, tuple[int, int]] = {}
        self.attempts: dict[int, int] = {}
        self.done: set[int] = set()

    @rule(count=st.integers(1, 40))
    def send(self, count: int) -> None:
        self.end += count

    @rule(ms=st.sampled_from([1, 100, INVISIBLE_MS]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(count=st.integers(1, 9), wanted=st.sampled_from([1, 2, 3]))
    def pop(self, count: int, wanted: int) -> None:
        flights = self.flights
        again = flights.due(self.now_ms, count)
        until = self.now_ms + INVISIBLE_MS
        flights.deliver_again(again, self.now_ms, until)
        at = flights.next
        end = min(self.end, at + count - len(again))
        # A filter takes every message, or each second or third.
        matching = [offset for offset in range(at, end) if offset % wanted == 0]
        given = flights.deliver(end, matching, self.now_ms, until)
        assert not set(given) & self.done
        self.done |= {offset for offset in range(at, end) if offset % wanted}
        for offset in (*again, *given):
            assert offset >= self.start
            _, held_until = self.held.get(offset, (0, 0))
            assert held_until <= self.now_ms, "it is in flight to another consumer"
            self.held[offset] = (self.now_ms, until)
            self.attempts[offset] = self.attempts.get(offset, 0) + 1
            assert flights.attempt_of(offset) == self.attempts[offset]
        self.record()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        receipt, _ = self.held.pop(offset)
        assert self.flights.is_current(offset, receipt)
        self.flights.finish(offset)
        assert not self.flights.is_current(offset, receipt)
        self.done.add(offset)
        self.attempts.pop(offset)
        self.position = self.position.acknowledged(0, [(offset, 1)])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), ms=st.sampled_from([0, 1, 5_000]))
    def renew(self, data: st.DataObject, ms: int) -> None:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        before, _ = self.held[offset]
        receipt = self.flights.renew(offset, self.now_ms, ms)
        assert receipt > before
        assert not self.flights.is_current(offset, before)
        self.held[offset] = (receipt, receipt + max(ms, 1))

    @precondition(lambda self: self.end > self.start)
    @rule(count=st.integers(1, 9))
    def delete(self, count: int) -> None:
        self.start = min(self.start + count, self.end)
        self.flights.delete_below(self.start)
        self.done |= set(range(self.start))
        self.held = {at: held for at, held in self.held.items() if at >= self.start}
        self.attempts = {at: count for at, count in self.attempts.items() if at >= self.start}
        self.position = self.position.acknowledged(self.start, [])

    @rule()
    def restart(self) -> None:
        self.flights = QueueFlights(self.position)
        self.held, self.attempts = {}, {}
        self.done = {offset for offset in range(self.end) if self.position.has(offset)}

    def record(self) -> None:
        self.position = self.position.acknowledged(0, self.flights.take_skipped())

    @invariant()
    def every_message_is_done_or_in_flight_or_visible(self) -> None:
        flights = self.flights
        visible = set(range(flights.next, self.end)) - self.done
        in_flight = set(flights.unacknowledged(self.end + 1))
        assert in_flight == self.held.keys()
        assert flights.count == len(in_flight)
        assert not in_flight & self.done
        assert visible | in_flight | self.done >= set(range(self.end))
        assert {at for at in range(self.end) if self.position.has(at)} == self.done
        due = [at for at, (_, until) in sorted(self.held.items()) if until <= self.now_ms]
        assert flights.due(self.now_ms, self.end) == due
        assert flights.is_blocked(self.now_ms) == (len(due) < len(self.held))


Popping.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestPopping = Popping.TestCase


def test_a_lost_message_is_done_and_recorded() -> None:
    flights = QueueFlights(PopPosition(0))
    flights.deliver(3, [0, 1, 2], 5, 9)
    flights.lose(1)
    flights.lose(2)
    assert flights.take_skipped() == [(1, 2)]
    assert flights.take_skipped() == []
    assert flights.unacknowledged(9) == [0]


def test_messages_that_no_filter_wants_are_recorded_as_runs() -> None:
    flights = QueueFlights(PopPosition(0))
    for end in range(4_096, 8 * 4_096 + 1, 4_096):
        flights.deliver(end, [], 5, 9)
    assert flights.skipped == [(0, 8 * 4_096)]
    first = flights.next
    flights.deliver(first + 9, [first + 2, first + 3, first + 8], 5, 9)
    assert flights.take_skipped() == [(0, first + 2), (first + 4, 4)]
    assert flights.unacknowledged(9) == [first + 2, first + 3, first + 8]


def test_a_repeated_answer_is_no_new_attempt() -> None:
    flights = QueueFlights(PopPosition(0))
    flights.deliver(2, [0, 1], 5, 9)
    flights.deliver_again([0, 1], 7, 12, counts=False)
    assert [flights.attempt_of(at) for at in (0, 1, 2)] == [1, 1, 0]
    assert flights.is_current(0, 7)
    assert flights.due_from_ms == 12


def test_a_queue_runs_ahead_of_its_oldest_message_up_to_a_limit() -> None:
    flights = QueueFlights(PopPosition(0))
    flights.deliver(AHEAD_MAX, list(range(AHEAD_MAX)), 5, 9)
    assert flights.room == 0
    flights.finish(1)
    assert flights.room == 0
    flights.finish(0)
    assert flights.room == 2
    assert flights.due_from_ms == 9
    for at in range(2, AHEAD_MAX):
        flights.finish(at)
    assert flights.due(99, 9) == []
    assert flights.due_from_ms == NEVER


def test_a_message_in_flight_costs_at_most_200_bytes() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        flights = QueueFlights(PopPosition(0))
        for at in range(0, 100_000, 32):
            flights.deliver(at + 32, list(range(at, at + 32)), at, at + INVISIBLE_MS)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert flights.count == 100_000
    assert (used - before) / flights.count < 100
