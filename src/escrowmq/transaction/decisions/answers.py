"""Answers that several commands share."""

from __future__ import annotations

from typing import assert_never

from escrowmq.model.errors import RequestRefused
from escrowmq.transaction.commands import Appended, Decision, HoldReply
from escrowmq.transaction.records import NewRecord, Prepared, Scheduled, Stored


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
