"""The expected state in plain dicts: the judge's own model of the broker, without its code.

A ``World`` is the state after a number of commands. ``follow`` makes the next one: it derives on
its own what the command must lead to, and raises ``Wrong`` if the store answered otherwise. It
takes only the log offsets of messages from the answers, because no rule fixes them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.stored_message import StoredMessage
from escrowmq.transaction import commands as c
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.states import State

NEVER = 2**63 - 1
HOST = b"\x0a\x00\x00\x01\x00\x00\x2a\x9f"

_PREPARED_BIT = 0x4
_COMMITTED_BIT = 0x8
_IPV6_BORN_BIT = 0x10

Queue = tuple[str, int]


class Wrong(AssertionError):
    """The store answered, or holds, something that it must not."""

    def __init__(self, what: str) -> None:
        # Messages are long; the start and the end of the text tell more than the start alone.
        super().__init__(what if len(what) < 2_000 else f"{what[:1_000]} ... {what[-900:]}")


class Seen(NamedTuple):
    """Every field of a message that a reader can see."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_at_ms: int
    born_host: bytes
    stored_at_ms: int
    store_host: bytes
    reconsume_times: int
    log_offset: int
    prepared_offset: int


def seen(stored: StoredMessage) -> Seen:
    """Convert a stored message to the form that is compared."""
    return Seen(*[getattr(stored, name) for name in Seen._fields])


def shown(
    message: SentMessage,
    *,
    queue_offset: int,
    at_ms: int,
    log_offset: int,
    bits: int,
    prepared: int,
) -> Seen:
    """Build the message that a reader must see."""
    return Seen(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=queue_offset,
        body=message.body,
        properties=message.properties,
        flag=message.flag,
        sys_flag=message.sys_flag | bits | (_IPV6_BORN_BIT if len(message.born_host) > 8 else 0),
        born_at_ms=message.born_at_ms,
        born_host=message.born_host,
        stored_at_ms=at_ms,
        store_host=HOST,
        reconsume_times=message.reconsume_times,
        log_offset=log_offset,
        prepared_offset=prepared,
    )


class Row(NamedTuple):
    """A half message, or an ordinary one that waits for its time (``head`` is None)."""

    number: int
    head: int | None
    message: SentMessage
    log_offset: int
    stored_at_ms: int
    state: State = State.PREPARED
    #: When it is or was due to be shown; only for rows that wait.
    deliver_at_ms: int = 0
    is_shown: bool = False

    @property
    def is_undecided(self) -> bool:
        """Whether it is prepared or parked."""
        return self.state in (State.PREPARED, State.PARKED)

    @property
    def is_waiting(self) -> bool:
        """Whether it is committed but not yet due."""
        return self.state is State.COMMITTED and not self.is_shown

    @property
    def is_needed(self) -> bool:
        """Whether the store must keep all of it."""
        return self.is_undecided or self.is_waiting

    def held(self) -> Seen:
        """The bytes that the store must return while the message is held."""
        return shown(
            self.message,
            queue_offset=self.number,
            at_ms=self.stored_at_ms,
            log_offset=self.log_offset,
            bits=0 if self.head is None else _PREPARED_BIT,
            prepared=0,
        )


class Transaction(NamedTuple):
    """One transaction, identified by its first row."""

    head: int
    group: str
    transaction_id: str
    #: First row and number of rows of each request.
    requests: tuple[tuple[int, int], ...]
    next_at_ms: int
    #: An SDK numbers the requests of a transaction; a stock client sends only one request.
    is_numbered: bool = False
    state: State = State.PREPARED
    checks_sent: int = 0
    by: str = ""
    decided_at_ms: int = 0
    resumed_at_ms: int | None = None

    @property
    def rows(self) -> list[int]:
        """All its rows, in the order in which consumers will see them."""
        return [row for first, count in self.requests for row in range(first, first + count)]


class Step(NamedTuple):
    """An executed command, and the store's answer."""

    command: c.Command
    now_ms: int
    decision: c.Decision
    #: The end of the log afterwards, by which the commands in a log are counted.
    log_end: int


class World:
    """The state after some commands."""

    def __init__(self, policy: CheckPolicy) -> None:
        self.policy = policy
        self.queues: dict[Queue, list[Seen]] = {}
        self.rows: dict[int, Row] = {}
        self.transactions: dict[int, Transaction] = {}
        #: App, query, batch to the time of the decision.
        self.batches: dict[tuple[str, str, int | str], int] = {}
        #: Store time, which never goes back.
        self.at_ms = 0
        #: Retention may have deleted what was stored until then and is not needed.
        self.deleted_until_ms = 0

    def copy(self) -> World:
        """Copy the world; the values inside never change."""
        other = copy.copy(self)
        other.queues = {queue: list(messages) for queue, messages in self.queues.items()}
        other.rows = dict(self.rows)
        other.transactions = dict(self.transactions)
        other.batches = dict(self.batches)
        return other

    def transaction_of(self, row: int) -> Transaction | None:
        """The transaction that a row belongs to."""
        known = self.rows.get(row)
        return None if known is None or known.head is None else self.transactions[known.head]

    def newest(self, transaction_id: str) -> Transaction | None:
        """The transaction that the newest request with this id belongs to."""
        found = [t for t in self.transactions.values() if t.transaction_id == transaction_id]
        return max(found, key=lambda one: one.requests[-1], default=None)

    def show(self, row: int, at_ms: int) -> None:
        """Make a row visible to consumers."""
        known = self.rows[row]
        is_half = known.head is not None
        self._append(
            known.message,
            at_ms=at_ms,
            log_offset=known.log_offset,
            bits=_COMMITTED_BIT if is_half else 0,
            prepared=known.log_offset if is_half else 0,
        )
        self.rows[row] = known._replace(is_shown=True)

    def _append(
        self, message: SentMessage, *, at_ms: int, log_offset: int, bits: int = 0, prepared: int = 0
    ) -> int:
        messages = self.queues.setdefault((message.topic, message.queue_id), [])
        messages.append(
            shown(
                message,
                queue_offset=len(messages),
                at_ms=at_ms,
                log_offset=log_offset,
                bits=bits,
                prepared=prepared,
            )
        )
        return len(messages) - 1

    def store(self, message: SentMessage, log_offset: int, at_ms: int) -> int:
        """Show an ordinary message; return its queue offset."""
        return self._append(message, at_ms=at_ms, log_offset=log_offset)

    def hold(self, messages: tuple[SentMessage, ...], offsets: list[int], head: int | None) -> int:
        """Give each message the next row; return the first row."""
        first = len(self.rows)
        for number, (message, log_offset) in enumerate(zip(messages, offsets, strict=True), first):
            self.rows[number] = Row(number, head, message, log_offset, self.at_ms)
        return first

    def set_state(self, transaction: Transaction, **changes: object) -> Transaction:
        """Change a transaction and all its rows."""
        changed = transaction._replace(**changes)  # type: ignore[arg-type]
        self.transactions[changed.head] = changed
        for row in changed.rows:
            self.rows[row] = self.rows[row]._replace(state=changed.state)
        return changed

    def settle(self, transaction: Transaction, state: State, by: str) -> None:
        """Decide a transaction: show its messages now or when they are due, or never."""
        at_ms = self.at_ms
        self.set_state(transaction, state=state, by=by, decided_at_ms=at_ms, next_at_ms=NEVER)
        if state is State.ROLLED_BACK:
            return
        for row in transaction.rows:
            delay_ms = self.rows[row].message.deliver_after_ms
            if delay_ms:
                self.rows[row] = self.rows[row]._replace(deliver_at_ms=at_ms + delay_ms)
            else:
                self.show(row, at_ms)


class History:
    """All commands in their order, and the world after each."""

    def __init__(self, policy: CheckPolicy) -> None:
        self.steps: list[Step] = []
        self.worlds = [World(policy)]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def world(self) -> World:
        """The state after all commands."""
        return self.worlds[-1]

    def add(self, step: Step, follow: Callable[[World, Step], World]) -> None:
        """Add the next command."""
        self.worlds.append(follow(self.worlds[-1], step))
        self.steps.append(step)

    def count_in(self, log_end: int) -> int:
        """Count the commands in a log that ends here."""
        return sum(step.log_end <= log_end for step in self.steps)

    def until(self, count: int) -> History:
        """Another history that begins with the first ``count`` commands."""
        other = copy.copy(self)
        other.steps = self.steps[:count]
        # The last world is copied, because its time may be changed.
        other.worlds = [*self.worlds[:count], self.worlds[count].copy()]
        return other


def decided_state(resolution: Resolution) -> State:
    """State that a deciding resolution leads to."""
    return State.COMMITTED if resolution is Resolution.COMMIT else State.ROLLED_BACK
