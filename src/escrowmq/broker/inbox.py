"""Commands that wait for the writer, fair to those who sent them.

What shares a batch waits for all of it, so one who sends very much must not fill the batches of the
others.  Whoever has little waiting gets all of it into the next batch; those who have much share a
few places in it, in turn.  The same holds for the room in the inbox: it is full for those who fill
it before it is full for the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from escrowmq.broker.config import WriterConfig
from escrowmq.transaction.commands import Append, Command, Decision, Prepare

Tell = Callable[[Decision | BaseException], None]
"""Is told how a command ended."""

#: Who has more waiting than this has much; a stock client with 64 threads has not.
LITTLE = 64
LITTLE_BYTES = 1024 * 1024
#: Places in a batch for all who have much.
MUCH_TAKEN = 16


@dataclass(slots=True, eq=False)
class Waiting:
    """A command in the inbox."""

    command: Command
    tell: Tell
    size: int
    is_wanted: bool = True


@dataclass(slots=True)
class _Source:
    """What one sender has waiting."""

    waiting: deque[Waiting] = field(default_factory=deque)
    size: int = 0

    @property
    def has_much(self) -> bool:
        return len(self.waiting) > LITTLE or self.size > LITTLE_BYTES


class Depths(NamedTuple):
    """How much waits for the writer."""

    decisions: int
    messages: int
    questions: int
    #: Of the messages.
    bytes: int


class Lane:
    """Commands of one kind, by who sent them."""

    def __init__(self) -> None:
        #: Whose turn is next is first.
        self._sources: dict[Hashable, _Source] = {}
        self.count = 0
        self.size = 0

    def put(self, waiting: Waiting, source: Hashable) -> None:
        """Let one wait."""
        known = self._sources.get(source)
        if known is None:
            known = self._sources[source] = _Source()
        known.waiting.append(waiting)
        known.size += waiting.size
        self.count += 1
        self.size += waiting.size

    def held_by(self, source: Hashable) -> tuple[int, int]:
        """How many commands and bytes somebody has waiting."""
        known = self._sources.get(source)
        return (len(known.waiting), known.size) if known is not None else (0, 0)

    def take(self, room: int) -> list[Waiting]:
        """The next ones: all of those who have little, a few of the others."""
        batch: list[Waiting] = []
        much = []
        for key, source in list(self._sources.items()):
            # What nobody in particular sends is our own, or comes in measured slices.
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
            # Not even the first fits as a whole.
            self._take_a_few([next(iter(self._sources))], room, batch)
        return batch

    def _take_a_few(self, keys: list[Hashable], room: int, batch: list[Waiting]) -> None:
        share = max(room // len(keys), 1)
        size = 0
        for key in keys:
            if room <= 0 or size > LITTLE_BYTES:
                return
            # To the end of the queue of senders.
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

    def clear(self) -> list[Waiting]:
        """Take all of them out."""
        every = [one for source in self._sources.values() for one in source.waiting]
        self._sources.clear()
        self.count = self.size = 0
        return every


class Inbox:
    """Everything that waits for the writer: decisions go before messages."""

    def __init__(self, config: WriterConfig, *, are_decisions_alone: bool = False) -> None:
        self._config = config
        #: Where a batch costs no flush, decisions need not wait for messages to be written.
        self._are_decisions_alone = are_decisions_alone
        self._decisions = Lane()
        self._messages = Lane()

    def __len__(self) -> int:
        return self._decisions.count + self._messages.count

    @property
    def message_bytes(self) -> int:
        """Bytes of the messages that wait."""
        return self._messages.size

    def depths(self, questions: int) -> Depths:
        """How much waits; questions wait elsewhere."""
        messages = self._messages
        return Depths(self._decisions.count, messages.count, questions, messages.size)

    def put(
        self, command: Command, size: int | None, tell: Tell, source: Hashable = None
    ) -> Waiting:
        """Let a command wait; ``size`` as of ``size_of``."""
        waiting = Waiting(command, tell, size or 0)
        (self._decisions if size is None else self._messages).put(waiting, source)
        return waiting

    def has_room(self, size: int | None, source: Hashable = None) -> bool:
        """Whether one more may wait.

        When others have filled the room for messages, who has little may still use what is kept
        for decisions: half of the places, and once more the bytes.
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

    def take(self) -> list[Waiting]:
        """The next batch."""
        room = self._config.batch_max
        batch = self._decisions.take(room) if self._decisions.count else []
        if batch and self._are_decisions_alone:
            room = 0
        if self._messages.count and len(batch) < room:
            batch += self._messages.take(room - len(batch))
        return [waiting for waiting in batch if waiting.is_wanted]

    def clear(self) -> list[Waiting]:
        """Take all of them out."""
        return self._messages.clear() + self._decisions.clear()


def size_of(command: Command) -> int | None:
    """Bytes that a command brings; None for one that brings no messages."""
    if not isinstance(command, Prepare | Append):
        return None
    if isinstance(command, Prepare) and command.columns is not None:
        return command.columns.size
    if len(command.messages) == 1:
        (message,) = command.messages
        return len(message.body) + len(message.properties)
    return sum([len(message.body) + len(message.properties) for message in command.messages])
