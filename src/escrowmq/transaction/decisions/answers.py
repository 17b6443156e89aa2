"""Decisions that refuse a command or answer it again, shared by several deciders."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, TypeVar, assert_never

from escrowmq.model.errors import RequestRefused
from escrowmq.transaction.commands import Appended, Decision, HalfCommand, HoldReply
from escrowmq.transaction.records import NewRecord, Prepared, Scheduled, Stored

if TYPE_CHECKING:
    from escrowmq.transaction.core import Transactions
    from escrowmq.transaction.table import Half

CommandT = TypeVar("CommandT", bound=HalfCommand)


def refuse(code: str, message: str, **facts: object) -> Decision:
    """Refuse a command, with the reason and the facts."""
    return Decision(refused=RequestRefused(code, message, **facts))


def no_such_half(half_offset: int) -> Decision:
    """Refuse a command for an unknown half message."""
    return refuse(
        "no_such_half_message",
        "this broker never stored it, or its retention is over",
        half_offset=half_offset,
    )


def of_known_half(
    rule: Callable[[Transactions, CommandT, Half, int], Decision],
) -> Callable[[Transactions, CommandT, int], Decision]:
    """Let a rule also get the command's half message; a command for an unknown one is refused."""

    @wraps(rule)
    def decide(core: Transactions, command: CommandT, now_ms: int) -> Decision:
        half = core.half(command.half_offset)
        if half is None:
            return no_such_half(command.half_offset)
        return rule(core, command, half, now_ms)

    return decide


def stored_at(record: NewRecord, log_offsets: list[int]) -> HoldReply | Appended:
    """Reply to a command whose messages were written at these log offsets."""
    match record:
        case Stored():
            return Appended(queue_offsets=record.queue_offsets, log_offsets=log_offsets)
        case Prepared():
            return HoldReply(
                half_offset=record.first, count=len(log_offsets), log_offsets=log_offsets
            )
        case Scheduled():
            return Appended(queue_offsets=[-1] * len(log_offsets), log_offsets=log_offsets)
        case _:
            assert_never(record)
