"""Queue of commands that wait for the writer, fair to all senders.

A command waits for its whole batch, so one heavy sender must not fill the batches of the others.
A light sender gets all of its commands into the next batch. Heavy senders share a few places in
it, in turn. The same holds for room in the inbox: it is full for heavy senders before it is full
for light ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from escrowmq.broker.config import WriterConfig
from escrowmq.transaction.commands import (
    Append,
    CheckSent,
    Command,
    Decision,
    End,
    Prepare,
    Verdict,
    Verdicts,
)
from escrowmq.transaction.pop_commands import BuryMessages

Tell = Callable[[Decision | BaseException], None]
"""Callback that gets the decision on a command, or its error."""


def error_of(end: Decision | BaseException) -> BaseException | None:
    """Return why a command failed or was refused; None if it was carried out."""
    return end.refused if isinstance(end, Decision) else end


#: Places in a batch for all heavy senders together.
MUCH_TAKEN = 16
#: Senders with more queued commands than this, or more bytes than the next limit, count as
#: heavy. A stock client with 64 threads does not.
LITTLE = 64
LITTLE_BYTES = 1024 * 1024

#: As a tuple, because ``isinstance`` with a union makes the union first.
_OF_SETTLING = (CheckSent, Verdict, Verdicts)


@dataclass(slots=True, eq=False)
class QueuedCommand:
    """A command in the inbox."""

    command: Command
    tell: Tell
    size: int
    is_wanted: bool = True


@dataclass(slots=True)
class _Source:
    """Queued commands of one sender."""

    waiting: deque[QueuedCommand] = field(default_factory=deque)
    size: int = 0

    @property
    def has_much(self) -> bool:
        return len(self.waiting) > LITTLE or self.size > LITTLE_BYTES


class Depths(NamedTuple):
    """Queue depths of the writer."""

    decisions: int
    messages: int
    questions: int
    #: Bytes of the waiting messages.
    bytes: int


class SenderQueues:
    """Commands of one kind, by sender."""

    def __init__(self) -> None:
        #: The sender whose turn is next comes first.
        self._sources: dict[Hashable, _Source] = {}
        self.count = 0
        self.size = 0

    def put(self, waiting: QueuedCommand, source: Hashable) -> None:
        """Queue a command."""
        known = self._sources.get(source)
        if known is None:
            known = self._sources[source] = _Source()
        known.waiting.append(waiting)
        known.size += waiting.size
        self.count += 1
        self.size += waiting.size

    def held_by(self, source: Hashable) -> tuple[int, int]:
        """Return the number and bytes of a sender's queued commands."""
        known = self._sources.get(source)
        return (len(known.waiting), known.size) if known is not None else (0, 0)

    def take(self, room: int) -> list[QueuedCommand]:
        """Take the next commands: all of light senders, a few of heavy ones."""
        batch: list[QueuedCommand] = []
        much = []
        for key, source in list(self._sources.items()):
            # Commands without a sender are the broker's own, or come in bounded slices.
            if source.has_much and key is not None:
                much.append(key)
            elif len(batch) + len(source.waiting) <= room:
                del self._sources[key]
                batch += source.waiting
                self.count -= len(source.waiting)
                self.size -= source.size
            else:
                break
        if much:
            self._take_a_few(much, min(room - len(batch), MUCH_TAKEN), batch)
        elif not batch and self._sources:
            # Even the first sender's commands do not all fit.
            self._take_a_few([next(iter(self._sources))], room, batch)
        return batch

    def _take_a_few(self, keys: list[Hashable], room: int, batch: list[QueuedCommand]) -> None:
        share = max(room // len(keys), 1)
        size = 0
        for key in keys:
            if room <= 0 or size > LITTLE_BYTES:
                return
            # Removed here and added again below, the sender goes to the end of the queue.
            source = self._sources.pop(key)
            for _ in range(min(share, room, len(source.waiting))):
                waiting = source.waiting.popleft()
                batch.append(waiting)
                source.size -= waiting.size
                size += waiting.size
                room -= 1
                self.count -= 1
                self.size -= waiting.size
                if size > LITTLE_BYTES:
                    break
            if source.waiting:
                self._sources[key] = source

    def clear(self) -> list[QueuedCommand]:
        """Remove and return all commands."""
        every = [one for source in self._sources.values() for one in source.waiting]
        self._sources.clear()
        self.count = self.size = 0
        return every


class Inbox:
    """All commands that wait for the writer; decisions go before messages."""

    def __init__(self, config: WriterConfig, *, are_decisions_alone: bool = False) -> None:
        self._config = config
        #: If a batch costs no flush, decisions get their own batches and do not wait for messages.
        self._are_decisions_alone = are_decisions_alone
        self._decisions = SenderQueues()
        self._messages = SenderQueues()

    def __len__(self) -> int:
        return self._decisions.count + self._messages.count

    @property
    def message_bytes(self) -> int:
        """Bytes of the waiting messages."""
        return self._messages.size

    def depths(self, questions: int) -> Depths:
        """Return the queue depths; the caller counts the questions, which wait elsewhere."""
        messages = self._messages
        return Depths(self._decisions.count, messages.count, questions, messages.size)

    def put(
        self, command: Command, size: int | None, tell: Tell, source: Hashable = None
    ) -> QueuedCommand:
        """Queue a command; ``size`` comes from ``size_of``."""
        waiting = QueuedCommand(command, tell, size or 0)
        (self._decisions if size is None else self._messages).put(waiting, source)
        return waiting

    def has_room(self, size: int | None, source: Hashable = None) -> bool:
        """Whether one more command may wait.

        If others have filled the room for messages, a light sender may still use half of the places
        that are kept for decisions. If the bytes are used up, a sender that holds none may use as
        many bytes again.
        """
        config, count = self._config, len(self)
        if size is None:
            return count < config.inbox_max
        used = self._messages.size
        is_heavy = used > 0 and used + size > config.bytes_max
        if count < config.messages_max and not is_heavy:
            return True
        if source is None or count >= (config.messages_max + config.inbox_max) // 2:
            return False
        held, held_bytes = self._messages.held_by(source)
        if is_heavy and (held_bytes or used + size > 2 * config.bytes_max):
            return False
        return held < LITTLE

    def take(self) -> list[QueuedCommand]:
        """Take the next batch."""
        room = self._config.batch_max
        batch = self._decisions.take(room) if self._decisions.count else []
        if batch and self._are_decisions_alone:
            room = 0
        if self._messages.count and len(batch) < room:
            batch += self._messages.take(room - len(batch))
        return [waiting for waiting in batch if waiting.is_wanted]

    def clear(self) -> list[QueuedCommand]:
        """Remove and return all commands."""
        return self._messages.clear() + self._decisions.clear()


#: As a tuple, because ``isinstance`` with a union makes the union first.
_WITH_MESSAGES = (Prepare, Append, BuryMessages)


def size_of(command: Command) -> int | None:
    """Return the message bytes of a command, or None if it brings no messages."""
    if not isinstance(command, _WITH_MESSAGES):
        return None
    if isinstance(command, Prepare) and command.columns is not None:
        return command.columns.size
    if len(command.messages) == 1:
        (message,) = command.messages
        return len(message.body) + len(message.properties)
    return sum([len(message.body) + len(message.properties) for message in command.messages])


def is_background(command: Command) -> bool:
    """Whether the command comes from settling undecided transactions, so that no client waits."""
    if isinstance(command, End):
        return command.from_check
    return isinstance(command, _OF_SETTLING)
