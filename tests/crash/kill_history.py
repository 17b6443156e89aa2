"""What the clients of a killed process remember, in plain dicts, and what follows from it.

Every command is recorded when it is sent and when its answer comes. A command without an answer may
have been executed or not, so its transaction has more than one possible state. An answer that
contradicts an earlier one is ``Wrong`` at once; the judge checks the rest.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.transaction import commands as c
from escrowmq.transaction.states import State
from tests.crash.kill_wire import Answered, Asked, Done, Refused
from tests.crash.model import Queue, Seen, Wrong, decided_state

DECIDED = (State.COMMITTED, State.ROLLED_BACK)
#: A state, and the number of back-checks that were counted.
Condition = tuple[State, int]


@dataclass(slots=True)
class Op:
    """A command that was sent; ``ended`` is infinite until its answer comes."""

    asked: Asked
    sent: int
    sent_ms: int
    ended: float = math.inf
    is_refused: bool = False
    #: The conditions that its transaction could have had before.
    before: set[Condition] = field(default_factory=set)


@dataclass(slots=True)
class Request:
    """Half messages that were sent together."""

    messages: tuple[SentMessage, ...]
    number: int | None
    sent_ms: int
    tries: int = 0
    #: The first row, once an answer or the store has shown it.
    first: int | None = None


@dataclass(slots=True)
class Decision:
    """The one decision, as an answer or the store first showed it."""

    state: State
    by: str
    at_ms: int


@dataclass(slots=True)
class Tx:
    """A transaction of one client."""

    name: str
    group: str
    requests: list[Request] = field(default_factory=list)
    possible: set[Condition] = field(default_factory=lambda: {(State.PREPARED, 0)})
    decision: Decision | None = None
    #: The judge found it decided between two lives, so no later answer can be the first.
    was_found_decided: bool = False
    #: Decider to the resolution it sent, and when it first sent it.
    tried: dict[str, tuple[Resolution, int]] = field(default_factory=dict)
    #: Commands without an answer, to be sent again.
    unsure: list[Asked] = field(default_factory=list)
    #: When a client first knew that it is committed.
    known_at: float = math.inf

    @property
    def rows(self) -> list[int]:
        """All known rows."""
        return [
            row
            for request in self.requests
            if request.first is not None
            for row in range(request.first, request.first + len(request.messages))
        ]

    @property
    def states(self) -> set[State]:
        """The states that it may be in."""
        return {state for state, _ in self.possible}

    @property
    def is_whole(self) -> bool:
        """Whether all its requests are known to be held."""
        return all(request.first is not None for request in self.requests)


def key_of(body: bytes) -> str:
    """The key that every body starts with."""
    return body.partition(b":")[0].decode()


class History:
    """Everything that clients sent, were answered and saw."""

    def __init__(self, retention_ms: int, copy_after_ms: int) -> None:
        self.retention_ms = retention_ms
        self.copy_after_ms = copy_after_ms
        self._ticks = itertools.count(1)
        self.messages: dict[str, SentMessage] = {}
        self.transactions: dict[str, Tx] = {}
        #: Message key to its transaction, or to the command that appended it.
        self.owner: dict[str, Tx] = {}
        self.appends: list[Op] = []
        self.append_of: dict[str, Op] = {}
        self.rows: dict[int, str] = {}
        #: Queue offset to key, as answered or seen.
        self.places: dict[Queue, dict[int, str]] = {}
        #: Key to queue offset, and to the time it became visible if it was seen.
        self.place_of: dict[str, int] = {}
        self.visible_ms: dict[str, int] = {}
        self.acknowledged = 0
        self.lost = 0

    # Requests of clients.

    def sent(self, asked: Asked, tx: Tx | None, now_ms: int) -> Op:
        """Record a command that is being sent."""
        op = Op(asked, next(self._ticks), now_ms)
        if isinstance(asked, c.Append):
            self.appends.append(op)
            for message in asked.messages:
                self.messages[key_of(message.body)] = message
                self.append_of[key_of(message.body)] = op
        elif isinstance(asked, c.Prepare):
            assert tx is not None
            self._note_request(asked, tx, now_ms)
        elif tx is not None:
            op.before = set(tx.possible)
            tx.possible |= {after(asked, condition) for condition in op.before}
            if isinstance(asked, c.End):
                tx.tried.setdefault(asked.by, (asked.resolution, op.sent))
        return op

    def _note_request(self, asked: c.Prepare, tx: Tx, now_ms: int) -> None:
        self.transactions[tx.name] = tx
        at = asked.number or 0
        if at == len(tx.requests):
            tx.requests.append(Request(asked.messages, asked.number, now_ms))
            for message in asked.messages:
                self.messages[key_of(message.body)] = message
                self.owner[key_of(message.body)] = tx
        tx.requests[at].tries += 1

    # Answers to clients.

    def answered(self, op: Op, tx: Tx | None, answer: Answered, now_ms: int) -> None:
        """Record an answer, and check it against all others."""
        op.ended = next(self._ticks)
        self.acknowledged += 1
        match op.asked, answer:
            case c.Append(), c.Appended():
                self._appended(op.asked, answer)
            case c.Prepare(), c.HoldReply():
                assert tx is not None
                self._held(op.asked, answer, tx)
            case c.End(), c.EndReply():
                assert tx is not None
                self._settled(op, answer, tx, now_ms)
            case c.End(resolution=Resolution.UNKNOWN), Done():
                pass
            case ((c.Park() | c.Resume() | c.CheckSent()), Done()):
                assert tx is not None
                self._moved(op, tx)
            case c.Append(), Refused(code="mixed_delivery_times"):
                # The first messages were due before the writer examined them.
                op.is_refused = True
            case _, Refused():
                assert tx is not None, answer
                self._refused(op, answer, tx, now_ms)
            case _:
                raise Wrong(f"{op.asked} was answered {answer}")

    def lost_answer(self, op: Op, tx: Tx | None) -> None:
        """Record a command whose connection ended before its answer."""
        self.lost += 1
        if tx is not None and not isinstance(op.asked, c.Prepare | c.CheckSent):
            tx.unsure.append(op.asked)

    def _appended(self, asked: c.Append, answer: c.Appended) -> None:
        for message, offset in zip(asked.messages, answer.queue_offsets, strict=True):
            if (offset < 0) != (message.deliver_at_ms > 0):
                # It may have come due before the writer examined it.
                assert message.deliver_at_ms, f"{message} got no place"
            if offset >= 0:
                self.place(key_of(message.body), offset)

    def _held(self, asked: c.Prepare, answer: c.HoldReply, tx: Tx) -> None:
        request = tx.requests[asked.number or 0]
        known = request.first
        if answer.count != len(request.messages):
            raise Wrong(f"{tx.name}: {answer} for {len(request.messages)} messages")
        if known is not None and (known != answer.half_offset or not answer.repeated):
            raise Wrong(f"{tx.name} was held at {known}, is now {answer}")
        if answer.repeated and request.tries == 1:
            raise Wrong(f"{tx.name}: {answer}, but it was sent once")
        self.hold(tx, request, answer.half_offset)

    def hold(self, tx: Tx, request: Request, first: int) -> None:
        """Record that a request has these rows, and no other request has."""
        request.first = first
        for row, message in enumerate(request.messages, first):
            key = key_of(message.body)
            if self.rows.setdefault(row, key) != key:
                raise Wrong(f"row {row} is of {self.rows[row]} and of {key} ({tx.name})")

    def _settled(self, op: Op, answer: c.EndReply, tx: Tx, now_ms: int) -> None:
        asked = op.asked
        assert isinstance(asked, c.End)
        if answer.state is not decided_state(asked.resolution):
            raise Wrong(f"{tx.name}: {asked} was answered {answer}")
        if answer.half_offset not in tx.rows:
            raise Wrong(f"{tx.name}: {answer} is of another transaction")
        if not answer.repeated:
            if tx.was_found_decided or answer.by != asked.by:
                raise Wrong(f"{tx.name} was {tx.decision}, is decided again: {answer}")
            if tx.decision is not None and tx.decision.by != asked.by:
                raise Wrong(f"{tx.name} was {tx.decision}, is decided again: {answer}")
        self.decided(tx, Decision(answer.state, answer.by, answer.at_ms), now_ms)
        if answer.state is State.COMMITTED:
            tx.known_at = min(tx.known_at, op.ended)

    def decided(self, tx: Tx, found: Decision, now_ms: int) -> None:
        """Record a decision as an answer or the store shows it; it is final."""
        known = tx.decision
        if not found.by:
            # Retention has deleted the op record.
            if tx.requests[0].sent_ms > now_ms - self.retention_ms:
                raise Wrong(f"{tx.name}: no client decided {found}")
        elif tx.tried.get(found.by, (None,))[0] is None or found.state is not decided_state(
            tx.tried[found.by][0]
        ):
            raise Wrong(f"{tx.name}: {found} was never asked for, but {tx.tried}")
        if known is None:
            tx.decision = known = found
        elif not known.by:
            tx.decision = Decision(known.state, found.by, found.at_ms)
        if known.state is not found.state or (known.by and found.by and known != found):
            raise Wrong(f"{tx.name} was {known}, is {found}")
        if found.state not in tx.states:
            raise Wrong(f"{tx.name} is {found}, it can only be {tx.possible}")
        tx.possible = {(found.state, 0)}

    def _moved(self, op: Op, tx: Tx) -> None:
        legal = {condition for condition in op.before if is_legal(op.asked, condition)}
        if not legal:
            raise Wrong(f"{tx.name} was {op.before}: {op.asked} cannot be done")
        tx.possible = {after(op.asked, condition) for condition in legal}

    def _refused(self, op: Op, answer: Refused, tx: Tx, now_ms: int) -> None:
        label = (
            answer.state if answer.code == "not_parked" else answer.code.removeprefix("already_")
        )
        if answer.code == "no_such_half_message":
            if not self.may_be_forgotten(tx, now_ms):
                raise Wrong(f"{tx.name} ({tx.possible}) was forgotten: {op.asked}")
            tx.possible = {condition for condition in tx.possible if condition[0] in DECIDED}
            return
        states = [state for state in tx.states if state.label == label]
        if not states:
            raise Wrong(f"{tx.name} is {tx.possible}: {op.asked} was answered {answer}")
        (state,) = states
        if isinstance(op.asked, c.End):
            if state not in DECIDED or state is decided_state(op.asked.resolution):
                raise Wrong(f"{tx.name}: {op.asked} was answered {answer}")
            self.decided(tx, Decision(state, answer.by, answer.at_ms), now_ms)
        elif state in DECIDED:
            tx.possible = {(state, 0)}
        else:
            tx.possible = {condition for condition in op.before if condition[0] is state}

    def may_be_forgotten(self, tx: Tx, now_ms: int) -> bool:
        """Whether retention may have deleted it: decided, visible, and old."""
        delay_ms = max(m.deliver_after_ms for request in tx.requests for m in request.messages)
        is_old = tx.requests[0].sent_ms + delay_ms <= now_ms - self.retention_ms
        return is_old and bool(tx.states & set(DECIDED))

    # Messages that clients see.

    def place(self, key: str, offset: int) -> None:
        """Record that a message has this queue offset and no other."""
        message = self.messages[key]
        queue = (message.topic, message.queue_id)
        other = self.places.setdefault(queue, {}).setdefault(offset, key)
        if other != key:
            raise Wrong(f"{queue} at {offset}: {other}, and now {key}")
        if self.place_of.setdefault(key, offset) != offset:
            raise Wrong(f"{key} is in {queue} at {self.place_of[key]} and at {offset}")

    def saw(self, queue: Queue, offset: int, seen: Seen) -> None:
        """Record a message that a consumer received."""
        message = self.messages.get(key := key_of(seen.body))
        if message is None:
            raise Wrong(f"{queue} at {offset}: no client sent {seen}")
        shown = (seen.topic, seen.queue_id, seen.queue_offset, seen.body, seen.properties)
        if shown != (*queue, offset, message.body, message.properties):
            raise Wrong(f"{queue} at {offset}: expected {message}, got {seen}")
        self.place(key, offset)
        if self.visible_ms.setdefault(key, seen.stored_at_ms) != seen.stored_at_ms:
            raise Wrong(f"{key} became visible at {self.visible_ms[key]}, now {seen.stored_at_ms}")
        if seen.stored_at_ms < message.deliver_at_ms:
            raise Wrong(f"{key} is visible at {seen.stored_at_ms}: {message}")
        tx = self.owner.get(key)
        if tx is not None and State.COMMITTED not in tx.states:
            raise Wrong(f"{key} of {tx.name} is visible, which can only be {tx.possible}")


def after(asked: Asked, condition: Condition) -> Condition:
    """Condition of a transaction after a command was executed."""
    state, checks = condition
    if state in DECIDED or not is_legal(asked, condition):
        return condition
    match asked:
        case c.End(resolution=Resolution.COMMIT | Resolution.ROLLBACK):
            return decided_state(asked.resolution), 0
        case c.Park():
            return State.PARKED, checks
        case c.Resume():
            return State.PREPARED, 0
        case c.CheckSent() if state is State.PREPARED:
            return state, checks + 1
    return condition


def is_legal(asked: Asked, condition: Condition) -> bool:
    """Whether the command is not refused in this condition."""
    match asked:
        case c.Park():
            return condition[0] is State.PREPARED
        case c.Resume():
            return condition[0] is State.PARKED
    return True
