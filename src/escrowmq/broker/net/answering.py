"""Answers requests later: once their commands are durable, or between two batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from escrowmq.broker.state.create_first import CreateFirst
from escrowmq.broker.write.bulk import Bulk, Ends
from escrowmq.broker.write.guard import guarded
from escrowmq.broker.write.writer import Writer
from escrowmq.model.errors import RequestRefused
from escrowmq.store.store import Store
from escrowmq.transaction.commands import Command, Decision, EndReply

MADE_MAX = 1_024
"""Topics and groups that one request can create."""

Decided = Callable[[Decision], None]
Contradicted = Callable[[RequestRefused, EndReply], None]


class Answerable(Protocol):
    """A request of any protocol, as far as its answer is concerned."""

    @property
    def source(self) -> Hashable:
        """The sender; the writer shares its batches fairly among senders."""
        ...

    def owe(self) -> None:
        """Count it as a request whose answer comes later."""
        ...

    def answered(self) -> None:
        """Count its answer, which comes now, as no longer owed."""
        ...

    def decline(self, error: BaseException) -> None:
        """Answer with an error."""
        ...


ReplyT = TypeVar("ReplyT")


def reply_of(decision: Decision, kind: type[ReplyT]) -> ReplyT:
    """Return the reply to a command that was not refused."""
    assert isinstance(decision.reply, kind)
    return decision.reply


@dataclass(frozen=True, slots=True)
class Answering:
    """Runs the commands and questions of requests. Use it from one event loop only."""

    store: Store
    writer: Writer

    def attempt(self, request: Answerable, handle: Callable[[], None], made: int = 0) -> None:
        """Handle a request. If it wants a topic or group, create that first and handle it again."""
        try:
            handle()
        except CreateFirst as wanted:
            guarded(request.decline, self._make, request, wanted.command, handle, made)
        except Exception as error:  # noqa: BLE001 - one bad request must not end the others
            request.decline(error)

    def _make(
        self, request: Answerable, command: Command, handle: Callable[[], None], made: int
    ) -> None:
        if made >= MADE_MAX:
            raise RequestRefused("too_many_topics", "send to fewer new topics at a time", made=made)
        self.submit(request, command, lambda _: self.attempt(request, handle, made + 1))

    def submit(
        self,
        request: Answerable,
        command: Command,
        decided: Decided,
        contradicted: Contradicted | None = None,
    ) -> None:
        """Answer a request once its command is durable.

        ``contradicted`` answers it if the opposite decision stands.
        """
        tell = partial(_tell, request, decided, contradicted)
        self.writer.put(command, tell, request.source)
        request.owe()

    def submit_all(
        self, request: Answerable, commands: Sequence[Command], decided: Callable[[Ends], None]
    ) -> None:
        """Answer a request once each of its commands is durable, refused, or failed."""

        def tell(ends: Ends) -> None:
            request.answered()
            failed = [end for end in ends if not isinstance(end, Decision)]
            if ends and len(failed) == len(ends):
                request.decline(failed[0])
            else:
                guarded(request.decline, decided, ends)

        request.owe()
        Bulk(self.writer, commands, tell).start()

    def look(self, request: Answerable, answer: Callable[[], None]) -> None:
        """Answer a query between two batches, when memory holds exactly what is durable."""

        def look() -> None:
            request.answered()
            if self.store.failure is None:
                guarded(request.decline, answer)
            else:
                request.decline(self.store.finished())

        self.writer.between(look)
        request.owe()


def _tell(
    request: Answerable,
    decided: Decided,
    contradicted: Contradicted | None,
    end: Decision | BaseException,
) -> None:
    """Answer a request with the end of its command."""
    request.answered()
    if not isinstance(end, Decision):
        request.decline(end)
    elif end.refused is None:
        guarded(request.decline, decided, end)
    elif contradicted is None or end.contradicted is None:
        request.decline(end.refused)
    else:
        guarded(request.decline, contradicted, end.refused, end.contradicted)
